"""Apps: functions as handlers, tasks that submit jobs, handles that wait for them, and schedules."""

from penstock.app.app import App
from penstock.app.context import JobContext
from penstock.app.gathering import as_completed, gather
from penstock.app.handle import JobHandle

__all__ = ["App", "JobContext", "JobHandle", "as_completed", "gather"]
