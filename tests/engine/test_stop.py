"""Signals are noted, and which of them end the process when they come again."""

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_c42_a_termination_that_is_sent_again_does_not_end_a_process_that_saves(number: signal.Signals) -> None:
    with listening() as stop:
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert stop.terminations == 3


def test_a_hangup_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.terminations == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_that_is_handed_on_twice_is_one_press() -> None:
    with listening() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.interrupts == 1


def test_a_later_interrupt_ends_the_process() -> None:
    code = """
import os, signal, time
from engine.stop import SAME_PRESS_S, listening
with listening() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    print("alive", flush=True)
    now_s = time.monotonic()
    time.monotonic = lambda: now_s + SAME_PRESS_S + 0.1
    os.kill(os.getpid(), signal.SIGINT)
    print("not reached", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "alive\n")


def test_other_threads_listen_to_nothing_and_run_all_the_same() -> None:
    seen: list[Stop] = []

    def run() -> None:
        with listening() as stop:
            seen.append(stop)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (seen[0].interrupts, seen[0].terminations) == (0, 0)
