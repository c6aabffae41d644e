"""Processes that work through parts, each part in one of them.

Knows how a worker is started, asked, heard and missed. Does not know what a part is, nor what becomes of its result
(prepare.py). Nothing of the workers outlives the process that started them, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from engine.data.prepare_task import Answer, Progress, Task, Work, answer
from engine.data.undisturbed import deaf_from_the_start

_TICK_S = 1.0
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    # The library `datasets` would import torch.
    "USE_TORCH": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A worker that ended without an answer, in words, and the number of the part that it was at."""

    number: int
    words: str


def worked_through(
    work: Work, tasks: Sequence[Task], *, workers: int
) -> Generator[Answer | Progress | Died | None, None, None]:
    """What workers say of their parts, as it comes; None each second in which nobody says anything.

    Parts are begun in their order; without `workers` this process makes them. Closing the iterator ends the workers at
    once, and what they were at is left undone.
    """
    if workers == 0:
        yield from (answer(work, task, lambda *_: None) for task in tasks)
        return
    waiting = list(reversed(tasks))
    pool: list[_Worker] = []
    try:
        pool += (_Worker(work) for _ in range(min(workers, len(tasks))))
        busy = {worker.connection: worker for worker in pool if worker.begin(waiting)}
        while busy:
            heard = wait(list(busy), _TICK_S)
            if not heard:
                yield None
            for connection in heard:
                assert isinstance(connection, Connection), "only workers are listened to"
                worker = busy[connection]
                told = worker.hear()
                if not isinstance(told, Progress) and (isinstance(told, Died) or not worker.begin(waiting)):
                    del busy[connection]
                yield told
    finally:
        for worker in pool:
            worker.close()


class _Worker:
    """One process, and the number of the part that it is at."""

    def __init__(self, work: Work) -> None:
        import engine

        self.connection, theirs = Pipe()
        # It finds titan where this process has, and leaves the cores to the other workers.
        path = os.pathsep.join(
            [str(Path(engine.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        with theirs, deaf_from_the_start(signal.SIGINT):
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", "engine.data.prepare_worker", str(theirs.fileno()), str(os.getpid())),
                env=os.environ | _ENVIRONMENT | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._number = -1
        self._send(work)

    def begin(self, waiting: list[Task]) -> bool:
        """Hands on the next part; False where there is none."""
        if not waiting:
            return False
        task = waiting.pop()
        self._number = task.number
        self._send(task)
        return True

    def hear(self) -> Answer | Progress | Died:
        """What it says, waited for."""
        try:
            told: Answer | Progress = self.connection.recv()
        except (EOFError, OSError):
            return Died(number=self._number, words=_ended(self._process.wait()))
        return told

    def close(self) -> None:
        """Ends it, wherever it is."""
        self.connection.close()
        self._process.kill()
        self._process.wait()

    def _send(self, thing: Work | Task) -> None:
        # One that is gone is missed when it is to be heard.
        with contextlib.suppress(OSError):
            self.connection.send(thing)


def _ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    killed = ", as the system does where memory runs out" if -code == signal.SIGKILL else ""
    return f"{signal.Signals(-code).name}{killed}"
