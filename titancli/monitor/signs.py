"""Signs of life of a launcher, also of one on another machine, as they stand in its run folder.

Knows a launcher's process, where it is of this machine, and a file that it touches every few seconds, whose age is
told by the clock of the file system, so that those of two machines do not matter. Does not know who may take the
folder (launch/lease), nor what ranks say.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path

from titancli.monitor.follow import LAUNCHER_FILE, Launcher

LEASE_FILE = "launcher.lease"
TOUCHED_EVERY_S = 5.0
HELD_FOR_S = 60.0
"""A launcher of another machine that has shown no sign for so long is dead."""


def is_held(run: Path, launcher: Launcher | None) -> bool:
    """Whether a launcher that has not said how the run ended still has it.

    Its process tells where it is of this machine, else the signs in the folder.
    """
    if launcher is None or launcher.exit_code is not None:
        return False
    alive = launcher.is_alive
    return silence_s(run) < HELD_FOR_S if alive is None else alive


def silence_s(run: Path) -> float:
    """Seconds since the launcher or a rank of a run last showed a sign, by the clock of its file system.

    A time well ahead of that clock is no sign of a process that lives: the clock has been set back since.
    """
    signs = [run / LEASE_FILE, run / LAUNCHER_FILE, *(run / "events").glob("rank-*.jsonl")]
    now_s = _now_s(run)
    times = [told for path in signs if (told := _changed_s(path)) is not None and told < now_s + HELD_FOR_S]
    return now_s - max(times, default=0.0)


def _changed_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _now_s(folder: Path) -> float:
    """The time of the file system that holds a folder; this machine's where nothing can be written to it."""
    probe = folder / f".now.{uuid.uuid4().hex[:8]}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
