"""What workers of a preparation are asked, and what they answer.

Knows the words, and what becomes of one part. Does not know how they are carried (prepare_worker.py, prepare_pool.py).
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from engine.data.prepare_part import PartDone, Refused, Tell
from engine.data.records import Unreadable
from engine.data.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer
from engine.errors import TitanError


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is the same for all parts. `tokenizer`: `bytes`, or the path of its file."""

    tokenizer: str
    folder: Path
    skip_unreadable: bool

    @cached_property
    def encoder(self) -> Tokenizer:
        """The tokenizer, read once in a process."""
        return ByteTokenizer() if self.tokenizer == "bytes" else FileTokenizer(self.tokenizer)


class Part(Protocol):
    """A piece of a corpus, in a form that is sent to a process."""

    @property
    def name(self) -> str:
        """Where it is, for people."""
        ...

    def make(self, work: Work, number: int, tell: Tell) -> PartDone:
        """Writes its files under its number; Refused, OSError or TitanError where that cannot be."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A part and its number."""

    number: int
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a part is."""

    number: int
    text_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a part: what is in it, or the records that it is refused for, or why it could not be made.

    `trace`: of a failure that nobody has thought of.
    """

    number: int
    done: PartDone | None = None
    refused: tuple[Unreadable, ...] = ()
    failure: BaseException | None = None
    trace: str = ""


def answer(work: Work, task: Task, tell: Tell) -> Answer:
    """Makes a part; what became of it, whatever that is."""
    try:
        return Answer(number=task.number, done=task.part.make(work, task.number, tell))
    except Refused as refused:
        return Answer(number=task.number, refused=tuple(refused.unreadable))
    except (OSError, TitanError) as failure:
        return Answer(number=task.number, failure=failure)
    except BaseException as failure:  # noqa: BLE001 - a panic of a tokenizer's own code is no Exception
        words = RuntimeError(f"{type(failure).__name__}: {failure}")
        return Answer(number=task.number, failure=words, trace=traceback.format_exc())
