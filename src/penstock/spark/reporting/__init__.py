"""The report about the jobs in a lake, as one HTML page and as numbers."""

from penstock.spark.reporting._figures import report_figures
from penstock.spark.reporting._page import report_page

__all__ = ["report_figures", "report_page"]
