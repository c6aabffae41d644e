"""The process that exports and imports: how it is started, shown and ended.

Knows the words of `python -m engine.exchange`. Does not know what is exchanged (export, import_).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from engine.checkpoint.places import is_url, place
from engine.errors import EXIT_RUN_FAILED, Finding, TitanError
from titancli import report
from titancli.data.progress import Line
from titancli.disk import decimal
from titancli.launch.processes import tied_to_this
from titancli.launch.torchrun import foreign

_ENDS_WITHIN_S = 5.0


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
    removed = foreign(os.environ)
    environ = {name: value for name, value in os.environ.items() if name not in removed}
    process = subprocess.Popen(
        tied_to_this((sys.executable, "-m", "engine.exchange")),
        env=environ | {"PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdin is not None, "a pipe was asked for"
    err: list[str] = []
    # Read beside: a pipe that is full would stop the process.
    reader = threading.Thread(target=lambda: err.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(words))
        last = _followed(process, label, is_shown=is_shown and report.is_screen(sys.stderr))
        process.wait()
    finally:
        _end(process)
    if "findings" in last:
        # Keys are those of a run; here the line itself says what is meant.
        findings = [Finding(**(finding | {"key": ""})) for finding in last["findings"]]
        raise (ExchangeFailed if process.returncode == EXIT_RUN_FAILED else TitanError)(*findings)
    if not last.pop("ok", False):
        reader.join(_ENDS_WITHIN_S)
        raise ExchangeFailed(_death(process.returncode, err))
    return last


def _followed(process: subprocess.Popen[str], label: str, *, is_shown: bool) -> dict[str, Any]:
    """The last line that the process says; the others are shown."""
    line, told = (Line() if is_shown else None), {}
    try:
        for text in process.stdout or ():
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


def _end(process: subprocess.Popen[str]) -> None:
    """Ends the process if it lives; what it has written so far it takes back."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _death(code: int, err: list[str]) -> Finding:
    last = next((line for line in reversed(err) if line.strip()), "").strip()
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    message = f"the process that exports and imports {how}" + (f": {last}" if last else "")
    return report.error("R197", message, "run it again with more free memory: one tensor at a time is held")
