"""`titan monitor`: a run, seen while it runs or after.

Knows the ways to show it. Does not know what is read of a run (watched), keys or when and how to draw (screen).
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from titancli import report

if TYPE_CHECKING:
    from titancli.monitor.frame import Frame
    from titancli.monitor.watched import Watched

REFRESH_S = 1.0
_LEAST_WIDTH, _PIPE_WIDTH = 40, 100


def monitor(name: str | None, *, dump_folder: str, once: bool, as_json: bool) -> int:
    """Shows a run until it ends, or once; 0 whatever became of the run.

    TitanError where there is no such run, or its folder is taken away while it is watched.
    """
    from engine.errors import TitanError
    from titancli.monitor.follow import find_run
    from titancli.monitor.watched import Watched

    watched = Watched(find_run(name, dump_folder))
    try:
        if as_json:
            _say_json(watched, once=once)
        elif once:
            _draw(watched.look())
        elif report.is_screen(sys.stdout):
            _show(watched)
        else:
            _say_lines(watched)
    finally:
        watched.close()
    if watched.is_gone:
        raise TitanError(watched.gone())
    return 0


def _say_json(watched: Watched, *, once: bool) -> None:
    import json

    while True:
        shown = watched.look()
        sys.stdout.write(json.dumps(shown.to_json(), allow_nan=False) + "\n")
        sys.stdout.flush()
        if once or watched.is_over:
            return
        time.sleep(REFRESH_S)


def _say_lines(watched: Watched) -> None:
    """One line for each new step or state, and each alert once, whatever its figures come to later."""
    from titancli.monitor.screen.panels import line

    last: tuple[object, ...] = ()
    told: set[object] = set()
    while True:
        shown = watched.look()
        if (shown.state, shown.seen.step) != last:
            last = (shown.state, shown.seen.step)
            report.say(line(shown))
        for alert in shown.alerts:
            news = shown.news.get(alert, {alert})
            if not told.issuperset(news):
                report.say(f"alert: {alert}")
                told.update(news)
        if watched.is_over:
            return
        time.sleep(REFRESH_S)


def _draw(shown: Frame) -> None:
    from rich.console import ConsoleDimensions

    from titancli.monitor.screen.panels import panels
    from titancli.monitor.screen.panels_ink import Ink

    console = report.console(sys.stdout)
    width = max(_LEAST_WIDTH, console.width) if sys.stdout.isatty() else _PIPE_WIDTH
    # Else rich cuts at what it takes a pipe for, which is 80 columns.
    console.size = ConsoleDimensions(width, console.height)
    console.print(panels(shown, width=width, ink=Ink.of(sys.stdout)))


def _show(watched: Watched) -> None:
    """The screen; what stays in the terminal is the end of a run, or where it was when somebody left."""
    from titancli.monitor.screen.panels import line
    from titancli.monitor.screen.watching import watch

    shown, was_left = watch(watched)
    if not was_left or watched.is_over:
        _draw(shown)
    else:
        report.say(line(shown))
        report.say(f"the run goes on; titan monitor {shown.run} shows it again", tint="faint")
