"""The process that exports and imports: how it is started, shown and ended.

Knows the words of `python -m engine.exchange`. Does not know what is exchanged (export, import_).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

from engine.checkpoint.places import is_url, place
from engine.errors import EXIT_RUN_FAILED, Finding, TitanError
from titancli import report
from titancli.data.progress import Line
from titancli.disk import decimal
from titancli.engine_process import engine_process


def local(written: str) -> str:
    """The absolute path of a folder of this machine; TitanError U199 for a URL of another place."""
    if is_url(written):
        message = f"{written} is a URL, and weights go in and out through a folder of this machine"
        raise TitanError(report.error("U199", message, "name a path here, and copy the folder from or to the URL"))
    return os.path.abspath(place(written, key=""))


class ExchangeFailed(TitanError):
    """What was asked for is sound, and doing it failed."""

    @property
    def exit_code(self) -> int:
        """As of a run that failed."""
        return EXIT_RUN_FAILED


def exchanged(words: dict[str, Any], *, label: str, is_shown: bool) -> dict[str, Any]:
    """Has a piece of work done and shows how far it is, on a screen; gives its last words.

    TitanError with its findings, ExchangeFailed where it failed on the way, R197 where it died. It never outlives this
    call.
    """
    # What it has written so far it takes back where it is interrupted.
    with engine_process("engine.exchange", within_s=5.0, ends_by=signal.SIGINT) as process:
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(words))
        last = _followed(process.stdout, label, is_shown=is_shown and report.is_screen(sys.stderr))
        code, death = process.popen.wait(), process.death
    if "findings" in last:
        # Keys are those of a run; here the line itself says what is meant.
        findings = [Finding(**(finding | {"key": ""})) for finding in last["findings"]]
        raise (ExchangeFailed if code == EXIT_RUN_FAILED else TitanError)(*findings)
    if not last.pop("ok", False):
        fix = "run it again with more free memory: one tensor at a time is held"
        raise ExchangeFailed(report.error("R197", f"the process that exports and imports {death}", fix))
    return last


def _followed(answers: Iterable[str], label: str, *, is_shown: bool) -> dict[str, Any]:
    """The last line that the process says; the others are shown."""
    line, told = (Line() if is_shown else None), {}
    try:
        for text in answers:
            told = json.loads(text)
            if line is not None and "done_bytes" in told:
                share = 100 * told["done_bytes"] / max(1, told["total_bytes"])
                line.show(f"{label}: {decimal(told['done_bytes'])} of {decimal(told['total_bytes'])}, {share:.0f} %")
            elif line is not None and "checks" in told:
                line.show(f"{label}: reading it again")
    finally:
        if line is not None:
            line.close()
    return told
