"""What a scheduler's command answers, heard out whatever this process is sent meanwhile.

A command that submits cannot be torn off: the job may be in the queue, and nobody would know its number. So it runs in
a session of its own, and signals are noted until it has answered. Does not know the commands.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from titancli import report
from titancli.launch.supervise import Signals

_TICK_S = 0.1
# After a signal: whoever sent it waits too, and SIGKILL may be next.
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a command ended; `stop_code` is titan's exit code where this process was asked to end meanwhile."""

    exit_code: int
    out: str
    err: str
    stop_code: int | None = None


class Unanswered(Exception):
    """A command that did not answer in time, or whose answer a second Ctrl-C did not wait for (then `stop_code`)."""

    def __init__(self, stop_code: int | None) -> None:
        super().__init__("no answer")
        self.stop_code = stop_code


class Stopped(Exception):
    """This process was asked to end; what it had submitted is taken back, or told where that cannot be done."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("asked to end")
        self.exit_code = exit_code


def heard_out(*command: str, within_s: float, text: str | None = None) -> Answer:
    """Runs a command to its end, with `text` on its standard input; Unanswered where there is none, or OSError."""
    deadline_s = time.monotonic() + within_s
    told = False
    with Signals() as signals, _started(command, takes_text=text is not None) as running:
        unsent = text
        while True:
            try:
                out, err = running.communicate(unsent, timeout=_TICK_S)
                return Answer(exit_code=running.returncode, out=out, err=err, stop_code=_stop_code(signals))
            except subprocess.TimeoutExpired:
                unsent = None  # communicate goes on with what it was given first
            if signals.has_any and not told:
                told = True
                deadline_s = min(deadline_s, time.monotonic() + _PATIENCE_S)
                what = f"waiting for {command[0]} to answer, to take back what it submits"
                report.say(f"{what}; Ctrl-C again waits no longer", sys.stderr)
            if time.monotonic() > deadline_s or signals.interrupts > 1:
                running.kill()
                running.communicate()
                raise Unanswered(_stop_code(signals))


def _started(command: Sequence[str], *, takes_text: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE if takes_text else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _stop_code(signals: Signals) -> int | None:
    if signals.interrupts:
        return EXIT_INTERRUPTED
    return EXIT_TERMINATED if signals.terminations else None
