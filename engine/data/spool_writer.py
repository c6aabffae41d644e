"""The side process that fills the spool of a run, as rank 0 sees it.

Knows how it is started, asked, missed and ended. Does not know what it does (spooling.py), nor when more is wanted
(streamed.py).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.data.reads import Named
from engine.data.spool import FAILED, begin, fail
from engine.data.spooling import TOKENS, Spooling
from engine.data.tokenizer import Tokenizer
from engine.data.tokenizer_identity import identity_of
from engine.data.undisturbed import WORKERS_IGNORE, deaf_from_the_start
from engine.errors import Finding


class SpoolWriter:
    """The side process that fills the spool of a run, started by rank 0."""

    def __init__(self, spooling: Spooling) -> None:
        """OSError where the folder cannot be written. What an earlier run of the same meaning left there is kept."""
        import engine

        self._spooling = spooling
        begin(spooling.folder, meaning_of(spooling))
        found = [str(Path(engine.__path__[0]).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        with deaf_from_the_start(*WORKERS_IGNORE):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "engine.data.spooling", str(os.getpid())],
                stdin=subprocess.PIPE,
                # USE_TORCH: the library `datasets` would import it.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(found), "OMP_NUM_THREADS": "1", "USE_TORCH": "0"},
            )
        self._wanted = 0
        self._send(pickle.dumps(spooling))

    def want(self, tokens: int) -> None:
        """So many tokens may be in the spool."""
        if tokens > self._wanted:
            self._wanted = tokens
            self._send(TOKENS.pack(tokens))

    def miss(self) -> None:
        """Tells all readers, where the process has ended and said nothing."""
        code = self._process.poll()
        if code is not None and code != 0 and not (self._spooling.folder / FAILED).exists():
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            message = f"the process that reads the stream of {self._spooling.path} {how}"
            fix = (
                "start the run again: it goes on where it was; signal 9 is what the system sends where memory runs out"
            )
            fail(
                self._spooling.folder,
                Finding(rule="D229", severity="error", key=self._spooling.key, message=message, fix=fix),
            )

    def close(self) -> None:
        """Ends it; what it was at is left undone."""
        with suppress(OSError):
            assert self._process.stdin is not None, "it is told how far to read"
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def _send(self, words: bytes) -> None:
        # One that is gone is missed by whoever waits for it.
        with suppress(OSError):
            assert self._process.stdin is not None, "it is told how far to read"
            self._process.stdin.write(words)
            self._process.stdin.flush()


def spooling_of(config: Config, named: Named, folder: Path, tokenizer: Tokenizer) -> Spooling:
    """What the side process of a run is told."""
    return Spooling(
        dataset=named.dataset,
        path=named.path,
        text_field=config.data.text_field,
        tokenizer=tokenizer.name,
        skip_unreadable=config.data.on_bad_line == "skip",
        key=named.key,
        folder=folder.absolute(),
    )


def meaning_of(spooling: Spooling) -> dict[str, Any]:
    """What has to be the same for the tokens of a spool to be read on."""
    values = {name: getattr(spooling, name) for name in ("dataset", "path", "text_field", "skip_unreadable")}
    identity = asdict(identity_of(spooling.encoder))
    return values | {"tokenizer": {name: value for name, value in identity.items() if name != "name"}}
