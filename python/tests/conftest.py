"""What all tests here need of the process that runs them."""

import signal


def pytest_configure(config):
    # A background job of a script ignores SIGINT, and so would the managers that the tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
