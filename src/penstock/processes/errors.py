"""The errors of the process queue: Penstock's own, some by the names that its specification gives them."""

from penstock.errors import (
    InvalidArgumentError,
    InvalidTransitionError,
    JobExistsError,
    JobNotFoundError,
    ProcessControlError,
)

__all__ = [
    "InvalidArgumentError",
    "InvalidJobStateError",
    "JobAlreadyExistsError",
    "JobNotFoundError",
    "ProcessControlError",
]

JobAlreadyExistsError = JobExistsError
InvalidJobStateError = InvalidTransitionError
