"""The failure that all ranks of a run name: whose it was, and what it said.

Knows what `run_ended` and torchrun are told of it. Does not know how ranks agree on it (ahead, pulse).
"""

from __future__ import annotations

import socket
import sysconfig
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import EXIT_RUN_FAILED, TitanError

# Longer than any stack that is told; the store of torchrun takes no value of megabytes.
_LONGEST_TEXT = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailure:
    """Why a run failed: the rank it began on, and the type and text of its error there.

    `place` is the line of code that raised it, `file:line in function`; empty where no line did.
    """

    rank: int
    host: str
    type: str
    message: str
    exit_code: int = EXIT_RUN_FAILED
    place: str = ""

    def fields(self) -> dict[str, Any]:
        """The object `first_failure` of the event `run_ended`."""
        fields = asdict(self)
        del fields["exit_code"]
        return fields


class PeerFailed(RuntimeError):
    """Another rank failed first, and this one ends with it: `first` is that rank's failure."""

    def __init__(self, first: FirstFailure) -> None:
        self.first = first
        super().__init__(f"rank {first.rank} on {first.host} failed first: {first.type}: {first.message}")


def text_of(failure: BaseException) -> str:
    """What an exception says, cut where it is very long; also of one that fails to say anything."""
    try:
        text = str(failure)
    except Exception as second:  # noqa: BLE001 - whatever its class does, the run has failed by the first
        return f"its text cannot be had ({type(second).__name__} in its __str__)"
    more = len(text) - _LONGEST_TEXT
    return text if more <= 0 else f"{text[:_LONGEST_TEXT]}... and {more:,} more characters"


def place_of(failure: BaseException) -> str:
    """The innermost line that an exception came by, of code that is neither Python's own nor another package's."""
    engine = str(Path(__file__).parent)
    installed = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
    frames = traceback.extract_tb(failure.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(engine) or not frame.filename.startswith(installed)]
    told = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in own or frames]
    return told[-1] if told else ""


def failure_here(failure: BaseException, rank: int) -> FirstFailure:
    """An exception of this rank as the failure of the run."""
    return FirstFailure(
        rank=rank,
        host=socket.gethostname(),
        type=type(failure).__name__,
        message=text_of(failure),
        exit_code=failure.exit_code if isinstance(failure, TitanError) else EXIT_RUN_FAILED,
        place=place_of(failure),
    )
