"""The audit: a journal checked against the table of legal moves and the invariants that it can decide."""

from penstock.lifecycle import INVARIANTS
from penstock.spark.auditing._run import Audit, audit, run_audit

__all__ = ["INVARIANTS", "Audit", "audit", "run_audit"]
