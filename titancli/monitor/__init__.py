"""`titan monitor`: a run, seen while it runs or after.

Knows when to read and where to write. Does not know events (fold), files (follow) or looks (panels).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from titancli import report
from titancli.monitor.failure import failures_of
from titancli.monitor.follow import Follower, Launcher, find_run, is_over, judge, read_config, read_plan
from titancli.monitor.frame import Frame, frame
from titancli.monitor.panels import line, panels
from titancli.monitor.signs import is_held

REFRESH_S = 1.0


def monitor(name: str | None, *, dump_folder: str, once: bool, as_json: bool) -> int:
    """Shows a run until it ends, or once; 0 whatever became of the run. TitanError where there is no such run."""
    watched = _Watched(find_run(name, dump_folder))
    if as_json:
        _say_json(watched, once=once)
    elif once:
        _draw(watched.look())
    elif report.is_screen(sys.stdout):
        _live(watched)
    else:
        _say_lines(watched)
    return 0


class _Watched:
    """A run folder with what was read of it so far; `is_over` where the last look saw all that there will be."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._follower = Follower(run)
        self.is_over = False

    def look(self) -> Frame:
        """What stands in the folder now."""
        # The launcher is read first: when it has written how the run ended, all events are there to be read.
        launcher = Launcher.read(self._run)
        seen = self._follower.read()
        holds = is_held(self._run, launcher)
        state = judge(seen, launcher, holds=holds)
        self.is_over = is_over(state, launcher, holds=holds)
        failures = failures_of(self._run, seen) if state == "failed" else []
        return frame(
            self._run.resolve().name,
            seen,
            state,
            failure=failures[0] if failures else None,
            config=read_config(self._run),
            plan=seen.plan or read_plan(self._run),
            now=time.time(),
        )


def _say_json(watched: _Watched, *, once: bool) -> None:
    while True:
        shown = watched.look()
        sys.stdout.write(json.dumps(shown.to_json(), allow_nan=False) + "\n")
        sys.stdout.flush()
        if once or watched.is_over:
            return
        time.sleep(REFRESH_S)


def _say_lines(watched: _Watched) -> None:
    """One line for each new step or state, and each alert once."""
    last: tuple[object, ...] = ()
    told: set[str] = set()
    while True:
        shown = watched.look()
        if (shown.state, shown.seen.step) != last:
            last = (shown.state, shown.seen.step)
            report.say(line(shown))
        for alert in shown.alerts:
            if alert not in told:
                report.say(f"alert: {alert}")
        told.update(shown.alerts)
        if watched.is_over:
            return
        time.sleep(REFRESH_S)


def _draw(shown: Frame) -> None:
    report.console(sys.stdout).print(panels(shown))


def _live(watched: _Watched) -> None:
    from rich.live import Live

    shown = watched.look()
    with Live(panels(shown), console=report.console(sys.stdout), auto_refresh=False) as live:
        while not watched.is_over:
            time.sleep(REFRESH_S)
            shown = watched.look()
            live.update(panels(shown), refresh=True)
