"""Real processes for tests of parallel code, started once and used by many tests.

Knows how to send a function by the file and name it is defined under, to any number of
processes that then share a gloo group of their own. A rank that fails ends the job at once, and
one that hangs is ended by a deadline: the processes are killed and started anew.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).with_name("gloo_worker.py")


class RankFailedError(AssertionError):
    """A rank raised; the text is its traceback."""


class RankDiedError(RankFailedError):
    """A rank's process ended without an answer: killed by the system, or crashed in native code."""


class GlooPool:
    """Processes that wait for work; `run` gives it to the first few of them. `folder` is where they meet."""

    def __init__(self, folder: Path, *, deadline_s: float = 90.0) -> None:
        self._deadline_s = deadline_s
        self._workers: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self._jobs = 0

    def run(self, world_size: int, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        """Calls a module-level function on every rank of a new group; returns what each gave back, by rank."""
        self._start(world_size)
        self._jobs += 1
        store = self._folder / f"store-{self._jobs}"
        for rank, worker in enumerate(self._workers[:world_size]):
            job = (inspect.getfile(function), function.__name__, arguments, rank, world_size, str(store))
            assert worker.stdin is not None
            pickle.dump(job, worker.stdin)
            worker.stdin.flush()
        try:
            return self._collect(world_size)
        except BaseException:
            self.close()
            raise

    def _start(self, count: int) -> None:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("TITAN_", "TORCHELASTIC_"))
        }
        for _ in range(count - len(self._workers)):
            self._workers.append(
                subprocess.Popen(
                    [sys.executable, str(_WORKER)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                )
            )

    def _collect(self, world_size: int) -> list[Any]:
        results: dict[int, Any] = {}
        end_s = time.monotonic() + self._deadline_s
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self._workers[:world_size]):
                assert worker.stdout is not None
                selector.register(worker.stdout, selectors.EVENT_READ, rank)
            while len(results) < world_size:
                ready = selector.select(max(0.0, end_s - time.monotonic()))
                if not ready:
                    missing = sorted(set(range(world_size)) - results.keys())
                    raise TimeoutError(f"ranks {missing} did not answer within {self._deadline_s:.0f} s")
                for key, _ in ready:
                    results[key.data] = _answer(key.data, key.fileobj)
                    selector.unregister(key.fileobj)
        return [results[rank] for rank in range(world_size)]

    def close(self) -> None:
        """Kills the processes; the next `run` starts others."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(BrokenPipeError):
                    assert pipe is not None
                    pipe.close()
        self._workers.clear()


def _answer(rank: int, pipe: Any) -> Any:
    try:
        well, value = pickle.load(pipe)
    except EOFError:
        raise RankDiedError(f"rank {rank} died") from None
    if not well:
        raise RankFailedError(f"rank {rank}:\n{value}")
    return value
