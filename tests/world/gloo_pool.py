"""Real processes for tests of parallel code, with torch imported from their start.

Knows how to send a function by the file and name it is defined under, to any number of
processes that share a gloo group of their own. A rank that fails ends the job at once, and
one that hangs is ended by a deadline. Every job has processes of its own: what is left of groups
keeps threads, each of which looks around a hundred times a second.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ready import ready

_WORKER = Path(__file__).with_name("gloo_worker.py")


class RankFailedError(AssertionError):
    """A rank raised; the text is its traceback."""


class RankDiedError(RankFailedError):
    """A rank's process ended without an answer: killed by the system, or crashed in native code."""


class GlooPool:
    """As many processes as a function asks for. `folder` is where they meet."""

    def __init__(self, folder: Path, *, deadline_s: float = 90.0) -> None:
        self._deadline_s = deadline_s
        self._folder = folder
        self._jobs = 0

    def run(self, world_size: int, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        """Calls a module-level function on every rank of a new group; returns what each gave back, by rank."""
        self._jobs += 1
        store = self._folder / f"store-{self._jobs}"
        job = (inspect.getfile(function), function.__name__, arguments, world_size, str(store))
        workers: list[_Worker] = []
        try:
            for rank in range(world_size):
                workers.append(_Worker(rank, job))
            return self._collect(workers)
        finally:
            for worker in workers:
                worker.close()

    def _collect(self, workers: list[_Worker]) -> list[Any]:
        results: dict[int, Any] = {}
        end_s = time.monotonic() + self._deadline_s
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(workers):
                selector.register(worker.answers, selectors.EVENT_READ, rank)
            while len(results) < len(workers):
                ready_now = selector.select(max(0.0, end_s - time.monotonic()))
                if not ready_now:
                    missing = sorted(set(range(len(workers))) - results.keys())
                    raise TimeoutError(f"ranks {missing} did not answer within {self._deadline_s:.0f} s")
                for key, _ in ready_now:
                    results[key.data] = _answer(key.data, key.fileobj)
                    selector.unregister(key.fileobj)
        return [results[rank] for rank in range(len(workers))]


class _Worker:
    """The process of a rank, and the pipe that its answer comes through."""

    def __init__(self, rank: int, job: tuple[Any, ...]) -> None:
        answers, gives = os.pipe()
        reads, writes = os.pipe()
        self.answers: BinaryIO = os.fdopen(answers, "rb")
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("TITAN_", "TORCHELASTIC_"))}
        # Ranks of a launch do not agree on the order of sets, and these do not either.
        self._process = ready(rank % 2).start(str(_WORKER), "main", streams=(reads, gives, 2), environ=environ)
        for ours in (reads, gives):
            os.close(ours)
        self._asks: BinaryIO = os.fdopen(writes, "wb")
        with contextlib.suppress(BrokenPipeError):
            pickle.dump((rank, *job), self._asks)
            self._asks.flush()

    def close(self) -> None:
        """Ends it, where it has not ended."""
        self._process.kill()
        self._process.wait()
        self.answers.close()
        with contextlib.suppress(BrokenPipeError):
            self._asks.close()


def _answer(rank: int, pipe: Any) -> Any:
    try:
        well, value = pickle.load(pipe)
    except EOFError:
        raise RankDiedError(f"rank {rank} died") from None
    if not well:
        raise RankFailedError(f"rank {rank}:\n{value}")
    return value
