"""What processes take of the processor and of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from engine.meters.process import OwnProcessor, ProcessMeters


def test_two_cores_and_a_half_are_250_per_cent() -> None:
    used, clock = iter((1.0, 6.0)), iter((10.0, 12.0))
    assert OwnProcessor(used=lambda: next(used), clock=lambda: next(clock)).pct() == 250.0


def test_nothing_is_said_of_no_time() -> None:
    assert OwnProcessor(used=lambda: 1.0, clock=lambda: 5.0).pct() is None


def test_a_process_is_read_twice_for_its_share_of_the_processor() -> None:
    ticks = iter((0.0, 2.0))
    meters = ProcessMeters(os.getpid(), clock=lambda: next(ticks))
    first, second = meters.read(), meters.read()
    assert first.reasons == {"cpu_pct": "first look"}
    assert second.reasons == {}
    assert (second.values["host_rss_bytes"] or 0) > 1 << 20


def test_a_process_that_is_not_there_is_refused() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(ProcessLookupError):
        ProcessMeters(ended.pid)


def test_a_process_that_began_later_only_bears_the_number() -> None:
    with pytest.raises(ProcessLookupError, match="another one"):
        ProcessMeters(os.getpid(), since=time.time() - 1e6)


def test_a_process_that_ends_has_no_figures() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        meters = ProcessMeters(child.pid)
    assert meters.read().reasons == {"cpu_pct": "process gone", "host_rss_bytes": "process gone"}
