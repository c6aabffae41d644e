"""Where the time of a run goes, from the newest profiles of its ranks: beside the plan, by cause, by rank and by stage.

Pure functions over what ranks told in this attempt. Knows how ranks that work together are compared. Does not know what
to do about it (alerts).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from titancli.monitor.profile import CAUSES, Profile
from titancli.monitor.run_state import Rank, RunState
from titancli.monitor.values import as_number, as_whole

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Mesh axes, outermost first: ranks of `tp` are neighbours."""
Who = TypeVar("Who", int, str)
# One profile may have met a hiccup of its host; whoever is late in two of them is slow.
_COMPARED = 2


class Layout(NamedTuple):
    """The degrees of the mesh."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Layout:
        """The mesh of a plan; one axis of all ranks where it has none that can be."""
        mesh = plan.get("mesh")
        degrees = [as_whole(mesh.get(axis)) for axis in AXES] if isinstance(mesh, Mapping) else []
        known = [degree for degree in degrees if degree is not None and degree > 0]
        return cls(*known) if len(known) == len(AXES) else cls()

    def stage(self, rank: int) -> int:
        """The pipeline rank of a rank; the last one of a rank that no mesh has."""
        return min(self.pp - 1, rank // (self.dp_replicate * self.dp_shard * self.cp * self.tp))

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """What ranks that communicate over an axis have alike. Weights are sharded over context ranks too."""
        place: dict[str, int] = {}
        for name, degree in zip(reversed(AXES), reversed(self), strict=True):
            rank, place[name] = divmod(rank, degree)
        within = ("dp_shard", "cp") if axis == "dp_shard" else (axis,)
        return tuple(0 if name in within else place[name] for name in AXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A rank and by how much it is behind: percent of the median of the others of its stage, `of` ranks in all.

    `spread_pct` is how far those others lie apart. `profiles` is in how many of them it was seen.
    """

    rank: int
    behind_pct: float
    spread_pct: float
    of: int
    profiles: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a pipeline stage takes of a step: the median of its ranks."""

    stage: int
    own_s: float
    bubble_s: float
    step_s: float


@dataclass(frozen=True)
class Diagnosis:
    """What the profiles of this attempt come to; empty and None where there are none."""

    profiles: Mapping[int, tuple[Profile, ...]]
    layout: Layout
    planned: Mapping[str, Any] | None

    @cached_property
    def newest(self) -> dict[int, Profile]:
        """The newest profile of each rank that took one."""
        return {rank: told[-1] for rank, told in self.profiles.items() if told}

    @cached_property
    def measured(self) -> dict[str, Any] | None:
        """Means over the ranks that took a profile, in the form of `time_s`."""
        told = list(self.newest.values())
        if not told:
            return None
        axes = {axis: [each.exposed_comm_s.get(axis, 0.0) for each in told] for axis in _axes(told)}
        return {
            "step": statistics.fmean(each.step_s for each in told),
            "compute": statistics.fmean(each.compute_s for each in told),
            **{cause: _mean(getattr(each, f"{cause}_s") for each in told) for cause in CAUSES},
            "exposed_comm": {axis: statistics.fmean(seconds) for axis, seconds in axes.items()},
        }

    @cached_property
    def own_s(self) -> dict[int, float]:
        """Seconds of a step that a rank does not wait for others: the better of its newest profiles."""
        return {rank: min(each.own_s for each in told[-_COMPARED:]) for rank, told in self.profiles.items() if told}

    @cached_property
    def behind_pct(self) -> dict[int, float]:
        """How much longer its own time is than the median of the other ranks of its stage, in percent."""
        return {rank: slow.behind_pct for stage in self._compared for rank, slow in stage.items()}

    @cached_property
    def slowest(self) -> Slow | None:
        """The rank that is furthest behind the others of its stage."""
        every = [slow for stage in self._compared for slow in stage.values()]
        return max(every, key=lambda slow: slow.behind_pct, default=None)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """What each pipeline stage takes, first to last; of stages that took profiles."""
        found = []
        for stage, ranks in self.by_stage.items():
            told = [self.newest[rank] for rank in ranks]
            found.append(
                Stage(
                    stage=stage,
                    own_s=statistics.median(self.own_s[rank] for rank in ranks),
                    bubble_s=statistics.median(each.bubble_s or 0.0 for each in told),
                    step_s=statistics.median(each.step_s for each in told),
                )
            )
        return tuple(found)

    def open_pct(self, axis: str) -> float | None:
        """Percent of the step in which communication over an axis is in the open, whoever else is late.

        Of every group, the rank that waits least: the others also wait for it. None where no rank told of the axis.
        """
        least: dict[tuple[int, ...], float] = {}
        for rank, told in self.newest.items():
            share = told.exposed_pct.get(axis)
            if share is not None:
                group = self.layout.group(rank, axis)
                least[group] = min(share, least.get(group, share))
        return statistics.fmean(least.values()) if least else None

    def planned_pct(self, *parts: str) -> float | None:
        """Percent of the planned step that is planned for parts, such as `bubble` or `exposed_comm.tp`."""
        planned = self.planned
        if planned is None or not planned["step"]:
            return None
        by_axis = planned["exposed_comm"] or {}
        known = [by_axis.get(part.partition(".")[2], 0.0) if "." in part else planned[part] for part in parts]
        return None if None in known else 100 * sum(known) / planned["step"]

    @cached_property
    def by_stage(self) -> dict[int, list[int]]:
        """Ranks that took a profile by their pipeline stage, in rising order."""
        found: dict[int, list[int]] = {}
        for rank in sorted(self.newest):
            found.setdefault(self.layout.stage(rank), []).append(rank)
        return found

    @cached_property
    def _compared(self) -> list[dict[int, Slow]]:
        """Each rank against the others of its stage; none in a stage of one."""
        return [
            _against_others({rank: self.own_s[rank] for rank in ranks}, self.profiles)
            for ranks in self.by_stage.values()
            if len(ranks) > 1
        ]


def diagnose(seen: RunState, plan: Mapping[str, Any]) -> Diagnosis:
    """What there is to say of a run; profiles of an earlier attempt do not count."""
    return Diagnosis(
        profiles={rank: profiles_now(each, seen) for rank, each in seen.ranks.items()},
        layout=Layout.of(plan),
        planned=planned_seconds(plan),
    )


def profiles_now(rank: Rank, seen: RunState) -> tuple[Profile, ...]:
    """The newest profiles of a rank that are of this attempt."""
    since = max(seen.began or 0.0, seen.restarted or 0.0)
    return tuple(each for each in rank.profiles if each.time > since)


def planned_seconds(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Seconds of a step on the busiest pipeline rank by plan, in the form of `time_s`; None where it has none.

    No plan knows how long data, a host or the gaps between kernels take: they are None.
    """
    time = plan.get("time")
    step_s = as_number(time.get("step_s")) if isinstance(time, Mapping) else None
    if not isinstance(time, Mapping) or step_s is None or step_s <= 0:
        return None
    by_axis = time.get("per_axis")
    axes = {str(axis): as_number(told) for axis, told in by_axis.items()} if isinstance(by_axis, Mapping) else {}
    return {
        "step": step_s,
        "compute": as_number(time.get("compute_s")),
        **dict.fromkeys(CAUSES),
        "bubble": as_number(time.get("bubble_s")),
        "exposed_comm": {axis: seconds for axis, seconds in axes.items() if seconds is not None},
    }


def _against_others(own_s: Mapping[int, float], profiles: Mapping[int, tuple[Profile, ...]]) -> dict[int, Slow]:
    """Each of some ranks against the others."""
    return {
        rank: Slow(
            rank=rank,
            behind_pct=behind_pct,
            spread_pct=spread_pct,
            of=len(own_s),
            profiles=min(_COMPARED, len(profiles[rank])),
        )
        for rank, (behind_pct, spread_pct) in behind_others(own_s).items()
    }


def behind_others(own_s: Mapping[Who, float]) -> dict[Who, tuple[float, float]]:
    """How much longer each one's time is than the median of all others, and how far all lie apart, both in percent.

    Two of them cannot tell how far apart is usual: 0 there. That median is found in their order once.
    """
    order = sorted(own_s, key=lambda who: own_s[who])
    times = [own_s[who] for who in order]
    middle = statistics.median(times)
    spread_s = statistics.median(sorted(abs(each - middle) for each in times)) if len(times) > _COMPARED else 0.0
    found: dict[Who, tuple[float, float]] = {}
    for place, who in enumerate(order):
        usual_s = _median_without(times, place)
        if usual_s > 0:
            found[who] = 100 * (own_s[who] / usual_s - 1), 100 * spread_s / usual_s
    return found


def _median_without(times: list[float], place: int) -> float:
    """The median of times in rising order, without the one at a place."""
    rest = len(times) - 1

    def at(index: int) -> float:
        return times[index if index < place else index + 1]

    return (at((rest - 1) // 2) + at(rest // 2)) / 2


def _axes(told: Iterable[Profile]) -> list[str]:
    found = dict.fromkeys(axis for each in told for axis in each.exposed_comm_s)
    return [*(axis for axis in AXES if axis in found), *(axis for axis in found if axis not in AXES)]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
