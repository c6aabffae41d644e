"""Who is to blame when a run stands still: a judgement over what every rank last said of itself.

Knows where a rank can be, and which of several ranks that wait keeps the others waiting. Does not know how ranks are
heard (pulse.py), and imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from engine.first_failure import FirstFailure

Point = Literal[
    "compare",
    "meet",
    "build",
    "corpus",
    "load",
    "data",
    "gradients",
    "word",
    "update",
    "report",
    "save",
    "validate",
    "end",
    "ended",
]
POINTS: Mapping[Point, str] = {
    "compare": "comparing what ranks run",
    "meet": "connecting to the other ranks",
    "build": "building the model",
    "corpus": "reading the corpus",
    "load": "loading a checkpoint",
    "data": "reading data",
    "gradients": "computing gradients",
    "word": "waiting for the status of the step",
    "update": "updating weights",
    "report": "writing figures",
    "save": "saving a checkpoint",
    "validate": "computing the validation loss",
    "end": "ending",
    "ended": "ended",
}
"""What a rank does, in words, in the order in which a run comes by; those of a step repeat with every step."""

_ORDER = {point: place for place, point in enumerate(POINTS)}
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a rank says of itself, again and again: `count` times by now.

    `idle_s` is how long it has been where it is, `deadline_s` how long it may be, by the setting `limit`. Past that
    `stack` holds its innermost frames, the last one where it is, and `waits` tells whether that is a wait for others.
    """

    rank: int
    host: str
    pid: int
    count: int
    step: int
    point: Point
    idle_s: float
    deadline_s: float
    limit: str
    stack: tuple[str, ...] = ()
    waits: bool = False

    @property
    def is_overdue(self) -> bool:
        """Whether it should have gone on by now."""
        return self.idle_s >= self.deadline_s

    @property
    def progress(self) -> tuple[int, int]:
        """How far the rank has come, to be compared with others."""
        return self.step, _ORDER[self.point]

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"step {self.step}, {POINTS[self.point]}" if self.step else POINTS[self.point]

    def to_json(self) -> str:
        """The beat as it is sent."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> Beat:
        """The beat that was sent."""
        fields = json.loads(text)
        return Beat(**fields | {"stack": tuple(fields["stack"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The last beat of a rank, None if there never was one, and how long ago it came, by the clock of who judges."""

    beat: Beat | None
    silent_s: float


def judge(ranks: Mapping[int, Heard], *, patience_s: float) -> FirstFailure | None:
    """The failure of a run that stands still; None while no rank is overdue, or the last one still has time.

    A rank that has been silent for `patience_s` is frozen or gone, and goes before any that waits for it. Else it is
    the rank with the least progress, and among equals the one that does not wait for others.
    """
    running = {rank: heard for rank, heard in ranks.items() if heard.beat is None or heard.beat.point != "ended"}
    silent = {rank: heard for rank, heard in running.items() if heard.silent_s >= patience_s}
    alive = [heard.beat for rank, heard in running.items() if rank not in silent and heard.beat is not None]
    if not any(beat.is_overdue for beat in alive):
        return None
    if silent:
        return _lost(silent)
    least = min(beat.progress for beat in alive)
    if not all(beat.is_overdue for beat in alive if beat.progress == least):
        return None
    overdue = [beat for beat in alive if beat.is_overdue]
    at_work = [beat for beat in overdue if not beat.waits]
    first = min(beat.progress for beat in at_work or overdue)
    stuck = [beat for beat in at_work or overdue if beat.progress == first]
    return _stuck(stuck, world_size=len(ranks))


def lost_head(me: Beat, *, address: str, silent_s: float) -> FirstFailure:
    """What a rank says that stands still and cannot reach the node where rank 0 and the ranks' store are."""
    return FirstFailure(
        rank=0,
        host=address,
        type="LostRank",
        message=f"the head node {address} has been silent for {silent_s:.0f} s: it is lost, or the network to it, or "
        f"rank 0 is frozen; rank {me.rank} on host {me.host} waits in {me.place}",
    )


def _lost(silent: Mapping[int, Heard]) -> FirstFailure:
    first = min(silent)
    heard = silent[first]
    beats = [each.beat for each in silent.values() if each.beat is not None]
    hosts = sorted({beat.host for beat in beats})
    where = f" on host{'s' if len(hosts) > 1 else ''} {', '.join(hosts)}" if hosts else ""
    one = len(silent) == 1
    whose = "its process is" if one else "their processes are"
    cause = f"{whose} frozen or killed, or the host is lost"
    last = "it was never heard" if heard.beat is None else f"it was last heard in {heard.beat.place}"
    return FirstFailure(
        rank=first,
        host=heard.beat.host if heard.beat is not None else "unknown",
        type="LostRank",
        message=f"{_named(list(silent))}{where} {'has' if one else 'have'} been silent for at least "
        f"{heard.silent_s:.0f} s: {cause}; {last if one else last.replace('it', f'rank {first}', 1)}",
    )


def _stuck(stuck: Sequence[Beat], *, world_size: int) -> FirstFailure:
    first = min(stuck, key=lambda beat: beat.rank)
    everybody = len(stuck) == world_size > 1
    who = f"all {world_size} ranks" if everybody else _named([beat.rank for beat in stuck])
    hosts = (
        ""
        if everybody
        else f" on host{'s' if len({beat.host for beat in stuck}) > 1 else ''} "
        + ", ".join(sorted({beat.host for beat in stuck}))
    )
    innermost = first.stack[-1].splitlines()[0] if first.stack else "a place that is not known"
    of_whom = f" (rank {first.rank})" if len(stuck) > 1 else ""
    head = (
        f"{who}{hosts} made no progress for {first.idle_s:.0f} s ({first.limit}) "
        f"{'and stand at the same place: ' if everybody else 'in '}{first.place}, at {innermost}{of_whom}"
    )
    return FirstFailure(
        rank=first.rank,
        host=first.host,
        type="StuckRank",
        message="\n".join((head, *(f"from {frame}" for frame in reversed(first.stack[:-1])))),
    )


def _named(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 3, 4`."""
    told = ", ".join(str(rank) for rank in sorted(ranks)[:_MOST_NAMED])
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {told}{more}"
