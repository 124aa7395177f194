"""The audit: checks a journal against the table of legal moves and the invariants."""

from penstock.lifecycle import INVARIANTS
from penstock.spark.auditing._run import Audit, audit, run_audit

__all__ = ["INVARIANTS", "Audit", "audit", "run_audit"]
