"""Prepares the test process."""

import signal


def pytest_configure(config):
    # A background job of a script ignores SIGINT, and the managers that the tests interrupt would inherit this.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
