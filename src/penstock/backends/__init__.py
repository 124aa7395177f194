"""Stores: the contract for authors of stores, the shared engine, and one package per database."""

from penstock.backends.contract.backend import ROLES, Backend
from penstock.backends.contract.joined import JoinedBackend
from penstock.backends.contract.journal import Journal
from penstock.backends.contract.outbox import Outbox
from penstock.backends.contract.owners import Owners
from penstock.backends.contract.reading import Reading
from penstock.backends.contract.runtime import Runtime
from penstock.backends.contract.values import (
    CALLBACKS,
    UNSET,
    Awaited,
    Change,
    Claimer,
    ClaimRequest,
    Delivery,
    Failure,
    JobEnd,
    NextStep,
    Retention,
    Schedule,
    UnsetType,
    Withheld,
)
from penstock.backends.options import StoreOptions

__all__ = [
    "CALLBACKS",
    "ROLES",
    "UNSET",
    "Awaited",
    "Backend",
    "Change",
    "ClaimRequest",
    "Claimer",
    "Delivery",
    "Failure",
    "JobEnd",
    "JoinedBackend",
    "Journal",
    "NextStep",
    "Outbox",
    "Owners",
    "Reading",
    "Retention",
    "Runtime",
    "Schedule",
    "StoreOptions",
    "UnsetType",
    "Withheld",
]
