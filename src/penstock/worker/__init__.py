"""Runs the jobs of an app: each in a process of its own that can be ended, or on a thread."""

from penstock.worker.worker import Worker

__all__ = ["Worker"]
