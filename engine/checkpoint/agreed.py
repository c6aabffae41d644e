"""Work on files that all ranks take part in: either it is done on every rank, or every rank raises the same.

Knows a group over the CPU with its own time limit, and how a failure of one rank reaches the others. Does not know what
is done. No rank goes on alone: a checkpoint that one rank could not write is one that nobody has.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist

from engine.errors import TitanError

T = TypeVar("T")


class FailedOnRank(RuntimeError):
    """What one rank could not do, and why, raised on all of them; `rank` and `host` are of the first that failed."""

    def __init__(self, what: str, why: str, *, rank: int, host: str) -> None:
        self.why, self.rank, self.host = why, rank, host
        super().__init__(f"{what} failed on rank {rank} (host {host}): {why}")


def group_of_all(timeout_s: float) -> dist.ProcessGroup:
    """A group of all ranks over gloo, on GPUs too; all of them call it at once. `timeout_s` is the longest wait."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    return group


def on_all(group: dist.ProcessGroup, what: str, work: Callable[[], T]) -> list[T]:
    """Does a piece of work on every rank; gives what each made of it, by rank.

    Where it raised OSError or TitanError, all ranks raise: the TitanError of the lowest rank, else FailedOnRank.
    """
    mine: tuple[T | None, BaseException | None, str]
    try:
        mine = (work(), None, socket.gethostname())
    except (OSError, TitanError) as failure:
        mine = (None, failure, socket.gethostname())
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    for rank, (_, trouble, host) in enumerate(everyone):
        if isinstance(trouble, TitanError):
            raise trouble
        if trouble is not None:
            raise FailedOnRank(what, reason(trouble), rank=rank, host=host)
    return [cast(T, made) for made, _, _ in everyone]


def on_first(group: dist.ProcessGroup, what: str, work: Callable[[], T]) -> T:
    """Does a piece of work on rank 0 alone; gives every rank what that made of it, or raises as `on_all`."""
    return cast(T, on_all(group, what, lambda: work() if dist.get_rank() == 0 else None)[0])


def reason(failure: BaseException) -> str:
    """Why, in lower case; of an OSError the system's own words."""
    if isinstance(failure, OSError) and failure.strerror:
        place = f": {failure.filename}" if failure.filename else ""
        return failure.strerror.lower() + place
    return str(failure) or type(failure).__name__
