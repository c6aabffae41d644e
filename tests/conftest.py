"""What tests of several rooms share: signals, a machine without calibrations, and real ranks."""

from __future__ import annotations

import os
import signal

import pytest
from gloo_pool import GlooPool

# Whoever starts the tests may have them ignored (nohup, a shell's background), and every child takes that over.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL if _number is signal.SIGHUP else signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for all tests, much of whose time is waiting; none beside this one for tests that are named."""
    return 2 if config.args_source is pytest.Config.ArgsSource.TESTPATHS else 0


@pytest.fixture(autouse=True)
def _no_calibrations(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of tests know nothing of what was measured on the machine that they run on."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / f"config-{os.urandom(4).hex()}"))


@pytest.fixture(scope="session")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> GlooPool:
    """`gloo.run(world_size, function, **arguments)`: calls a function on real ranks."""
    return GlooPool(tmp_path_factory.mktemp("gloo"))
