"""Delivery of job ends to callback urls: CloudEvents, signed as Standard Webhooks, at least once.

    delivery = CallbackDelivery(queue).start()
    ...
    delivery.close()

A `Worker` does this for its app. Any number of processes may: one of them delivers at a time.
"""

from penstock.callbacks.addresses import RefusedUrlError
from penstock.callbacks.delivery import CallbackDelivery
from penstock.callbacks.events import sign, verify

__all__ = ["CallbackDelivery", "RefusedUrlError", "sign", "verify"]
