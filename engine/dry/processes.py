"""A piece of work for each of several numbers, every one in a process of its own.

Knows that a process may die, that the others then go on, and that none outlives the one that
started it. Does not know what the work is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Died:
    """A process that ended without an answer, in words."""

    how: str


@dataclass(frozen=True, slots=True)
class _Running:
    process: BaseProcess
    answers: Connection


def each(work: Callable[[int], Result], count: int, *, at_once: int) -> list[Result | Died]:
    """`work(0)` to `work(count - 1)`, so many of them at a time; what each gave back, or how it died.

    Whatever ends this function ends the processes.
    """
    # A copy of this process has imported everything already; elsewhere than on Linux such copies are not safe.
    context = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
    found: dict[int, Result | Died] = {}
    running: dict[int, _Running] = {}
    waiting = list(range(count))
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                number = waiting.pop(0)
                answers, answer = context.Pipe(duplex=False)
                process = context.Process(target=_serve, args=(work, number, answer), daemon=True)  # type: ignore[attr-defined]
                process.start()
                # Else the end of the process would not be the end of the pipe.
                answer.close()
                running[number] = _Running(process, answers)
            ready = wait([one.answers for one in running.values()])
            for number, one in list(running.items()):
                if one.answers in ready:
                    found[number] = _collect(one)
                    del running[number]
    finally:
        for one in running.values():
            one.process.kill()
            one.process.join()
    return [found[number] for number in range(count)]


def _collect(one: _Running) -> Any:
    try:
        result = one.answers.recv()
    except EOFError:
        one.process.join()
        result = Died(_how(one.process.exitcode or 0))
    one.process.join()
    one.answers.close()
    return result


def _how(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"its process exited with {code}"
    reason = ", as a system does that runs out of memory" if code == -signal.SIGKILL else ""
    return f"its process was ended by {signal.Signals(-code).name}{reason}"


def _serve(work: Callable[[int], Result], number: int, answer: Connection) -> None:
    """What the process runs. Ctrl-C reaches all of a terminal's processes; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # Standard output belongs to the first process.
    os.dup2(2, 1)
    answer.send(work(number))
    answer.close()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was started by another"
    parent.join()
    os._exit(1)
