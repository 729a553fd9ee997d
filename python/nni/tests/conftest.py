import os
import signal

import pytest


def pytest_configure(config):
    # A background job of a script ignores SIGINT, and the managers that the tests interrupt would inherit this.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_surroundings(monkeypatch, tmp_path):
    """Gives each test its own data directory, outside any trial."""
    for name in list(os.environ):
        if name.startswith("NNI_") or name in ("REUSE_MODE", "MULTI_PHASE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRIAL_MANAGER_DATA_DIR", str(tmp_path / "data"))
