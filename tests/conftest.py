"""What holds for every test."""

import signal


def pytest_configure() -> None:
    # Run in the background by a shell, the tests and all they start would ignore Ctrl-C, which some of them send.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
