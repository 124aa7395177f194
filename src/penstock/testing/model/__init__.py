"""A reference store in plain dicts: the rules of the contract, read once more and written as simply as possible.

`ModelBackend` is slow, forgets everything at the end of the process, and shares no code with the real stores. It
passes the conformance suite, and the state machine of our tests compares the real stores with it after each step.
"""

from penstock.testing.model._backend import ModelBackend

__all__ = ["ModelBackend"]
