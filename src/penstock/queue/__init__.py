"""The queue: the store's verbs, streams that jobs are pushed to, events, flows and blocking."""

from penstock.queue.connect import connect
from penstock.queue.flow import Flow, chain, fan_in, fan_out
from penstock.queue.queue import Queue, Submitter
from penstock.queue.stream import JobStream

__all__ = ["Flow", "JobStream", "Queue", "Submitter", "chain", "connect", "fan_in", "fan_out"]
