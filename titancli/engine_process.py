"""`python -m engine.…`: how a process that needs torch is started by a command, listened to and ended.

Knows its environment, and how to tell of its death. Does not know what it says (dry_run, doctor, checkpoint/).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO

from titancli.launch.processes import tied_to_this
from titancli.launch.torchrun import foreign


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcess:
    """The process, with pipes to talk to it; what it says on stderr is kept for its death."""

    popen: subprocess.Popen[str]
    _err: IO[str]

    @property
    def stdin(self) -> IO[str]:
        """What it is asked through."""
        assert self.popen.stdin is not None, "a pipe was asked for"
        return self.popen.stdin

    @property
    def stdout(self) -> IO[str]:
        """What it answers through."""
        assert self.popen.stdout is not None, "a pipe was asked for"
        return self.popen.stdout

    @property
    def last_words(self) -> str:
        """The last line that it wrote on stderr, waited for its end; empty where there is none."""
        self.popen.wait()
        self._err.seek(0)
        return next((line.strip() for line in reversed(self._err.readlines()) if line.strip()), "")

    @property
    def death(self) -> str:
        """How it ended, waited for: `was ended by SIGKILL`, or `exited with 1: ` and its last words."""
        code = self.popen.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return f"{how}: {self.last_words}" if self.last_words else how


@contextmanager
def engine_process(
    *words: str,
    environ: Mapping[str, str] = MappingProxyType({"CUDA_VISIBLE_DEVICES": ""}),
    within_s: float = 3.0,
    ends_by: signal.Signals = signal.SIGTERM,
) -> Iterator[EngineProcess]:
    """Starts `python -m` with these words; the process never outlives the block.

    One that lives at its end gets `ends_by`, and is killed `within_s` seconds later. Without other `environ` it sees no
    GPU: everything is the same on every machine then, and those of this one stay free.
    """
    removed = foreign(os.environ)
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as err:
        popen = subprocess.Popen(
            tied_to_this((sys.executable, "-m", *words)),
            env={**kept, "PYTHONSAFEPATH": "1", **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        with popen:
            try:
                yield EngineProcess(popen=popen, _err=err)
            finally:
                if popen.poll() is None:
                    popen.send_signal(ends_by)
                    try:
                        popen.wait(within_s)
                    except subprocess.TimeoutExpired:
                        popen.kill()
