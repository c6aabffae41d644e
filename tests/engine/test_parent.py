"""A worker does not outlive torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

WORKER = """\
import os, signal, sys, time
from engine.parent import end_with_parent, has_torchrun
assert has_torchrun()
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
end_with_parent(within_s=0.1)
print(os.getpid(), flush=True)
time.sleep(60)
"""
AGENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[2], sys.argv[3]])"


@pytest.mark.parametrize("worker", ["hearing", "deaf"])
def test_worker_ends_when_its_torchrun_is_killed(worker: str) -> None:
    agent = subprocess.Popen(
        (sys.executable, "-c", AGENT, "torchrun", WORKER, worker),
        env=os.environ | {"TORCHELASTIC_RUN_ID": "x"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None
    process = psutil.Process(int(agent.stdout.readline()))
    agent.kill()
    agent.wait()
    agent.stdout.close()
    assert psutil.wait_procs([process], timeout=20)[1] == []


def test_worker_whose_torchrun_is_gone_before_it_asks_ends_at_once() -> None:
    began_s = time.monotonic()
    done = subprocess.run(
        (sys.executable, "-c", WORKER, "hearing"),
        env=os.environ | {"TORCHELASTIC_RUN_ID": "x"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, time.monotonic() - began_s < 30) == (-15, True)
