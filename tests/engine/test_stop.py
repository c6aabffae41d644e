"""Signals are noted, and a second one is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from engine.stop import Stop, listening


@pytest.mark.parametrize(
    ("number", "counts"),
    [(signal.SIGINT, (1, 0)), (signal.SIGTERM, (0, 1)), (signal.SIGHUP, (0, 1)), (signal.SIGUSR1, (0, 1))],
)
def test_a_signal_is_noted_and_ends_nothing(number: signal.Signals, counts: tuple[int, int]) -> None:
    with listening() as stop:
        os.kill(os.getpid(), number)
        assert (stop.interrupts, stop.terminations) == counts


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)]
    with listening():
        os.kill(os.getpid(), signal.SIGTERM)
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)]
    assert before == after


def test_the_second_signal_of_a_kind_ends_the_process() -> None:
    code = """
import os, signal
from engine.stop import listening
with listening():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    print("alive", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("not reached", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "alive\n")


def test_other_threads_listen_to_nothing_and_run_all_the_same() -> None:
    seen: list[Stop] = []

    def run() -> None:
        with listening() as stop:
            seen.append(stop)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (seen[0].interrupts, seen[0].terminations) == (0, 0)
