"""How much of a step is lost, and to what: the cases of alerts about time, by what profiles tell.

Knows what is worth a word: a twentieth of the step, measured in this attempt. Does not know how profiles are compared
(diagnosis), nor what is said and done about it (step_time).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from titancli import figures
from titancli.charts import AXES, seconds
from titancli.monitor.alerts.alert import Case, Look
from titancli.monitor.alerts.slow_hosts import SlowHost, slowest_host
from titancli.monitor.alerts.ways_time import schedule_pct
from titancli.monitor.diagnosis import Slow

WORTH_PCT = 5.0
"""Less of a step than this is nobody's trouble: plans of published runs are as far off on average."""
# Without a profile nobody knows whether the GPU had work meanwhile; where the host waits so long, it did not.
_HOST_WAITS_PCT = 20.0
# Where no plan has rates to say what is usual, as with processors.
_WORTH_UNPLANNED_PCT = 10.0
# As much beyond its plan as one profile may differ from another.
_BEYOND_PCT = 3.0
# How far a rank must be behind: more where one profile may have met a hiccup, or nobody else shows how ranks differ.
_BEHIND_PCT, _BEHIND_ONCE_PCT = WORTH_PCT, 10.0
_SPREADS = 3.0
# The plan of a step on one node has been off by 5.6 % at most on runs of titan, over several by more than that.
_KNOWN_ERROR_PCT, _KNOWN_ERROR_OF_NODES_PCT = 10.0, 20.0
_REPORTS = 3


def waits_for_data(look: Look) -> Iterator[Case]:
    """Ranks that wait for their next batch; the case is of the one that waits longest."""
    shares: dict[int, float] = {}
    for number, rank in look.seen.ranks.items():
        profile = look.diagnosis.newest.get(number)
        if profile is not None and profile.data_s is not None:
            shares[number] = 100 * profile.data_s / profile.step_s
        of_host = 100 * (rank.data_share or 0.0)
        if of_host >= (_HOST_WAITS_PCT if look.is_on_gpus else WORTH_PCT):
            shares[number] = max(of_host, shares.get(number, 0.0))
    late = {number: share for number, share in shares.items() if share >= WORTH_PCT}
    if late:
        worst = max(late, key=lambda number: late[number])
        ranks = figures.ranges(tuple(sorted(late)))
        yield Case(
            words={
                "ranks": f"rank {ranks} waits" if len(late) == 1 else f"ranks {ranks} wait up to",
                "share": late[worst],
                "host": look.seen.ranks[worst].host or "its host",
            },
            lost_pct=late[worst],
            about=frozenset(late),
        )


def waits_for_host(look: Look) -> Iterator[Case]:
    """On processors host and device are one: what is lost between operations has no cause of its own there."""
    if not look.is_on_gpus:
        return
    shares = [100 * each.host_s / each.step_s for each in look.diagnosis.newest.values() if each.host_s is not None]
    share = statistics.median(shares) if shares else 0.0
    if share >= WORTH_PCT:
        yield Case(words={"share": share}, lost_pct=share)


def exposed(axis: str) -> Callable[[Look], Iterator[Case]]:
    """Communication over an axis that nothing hides."""

    def cases(look: Look) -> Iterator[Case]:
        share = look.diagnosis.open_pct(axis)
        planned = look.diagnosis.planned_pct(f"exposed_comm.{axis}")
        if share is not None and share >= (_WORTH_UNPLANNED_PCT if planned is None else WORTH_PCT):
            yield Case(
                words={"share": share, "planned": _by_plan(planned)},
                lost_pct=share,
                is_planned=planned is not None and share - planned < _BEYOND_PCT,
            )

    return cases


def bubble(look: Look) -> Iterator[Case]:
    """Of the busiest stage: the others also wait for it."""
    stages = look.diagnosis.stages
    if look.diagnosis.layout.pp == 1 or not stages:
        return
    busiest = max(stages, key=lambda stage: stage.own_s)
    sends = [
        profile.exposed_pct.get("pp", 0.0)
        for rank, profile in look.diagnosis.newest.items()
        if look.diagnosis.layout.stage(rank) == busiest.stage
    ]
    share = 100 * busiest.bubble_s / busiest.step_s + statistics.median(sends)
    planned = look.diagnosis.planned_pct("bubble", "exposed_comm.pp")
    if planned is None and look.advice is not None:
        planned = schedule_pct(look.advice)
    if share >= WORTH_PCT:
        beyond = share - (planned or 0.0)
        yield Case(
            words={"share": share, "planned": _by_plan(planned)},
            lost_pct=share,
            is_planned=beyond < WORTH_PCT,
        )


def unbalanced(look: Look) -> Iterator[Case]:
    """A pipeline stage that works for longer than the mean of all: what equal ones would save."""
    stages = look.diagnosis.stages
    if look.diagnosis.layout.pp == 1 or len(stages) < look.diagnosis.layout.pp:
        return
    slowest = max(stages, key=lambda stage: stage.own_s)
    usual_s = statistics.fmean(stage.own_s for stage in stages)
    lost = 100 * (slowest.own_s - usual_s) / slowest.step_s
    if lost >= WORTH_PCT:
        plan = look.advice.plan if look.advice is not None else None
        layers = "" if plan is None else "; layers: " + ", ".join(str(len(stage.layers)) for stage in plan.stages)
        yield Case(
            words={
                "stage": slowest.stage,
                "own": seconds(slowest.own_s),
                "usual": seconds(usual_s),
                "longer": 100 * (slowest.own_s / usual_s - 1),
                "stages": f"{len(stages)} stages",
                "layers": layers,
            },
            lost_pct=lost,
        )


def slow_rank(look: Look) -> Iterator[Case]:
    """The rank that is furthest behind the others of its stage, or its host where nearly all ranks of it are.

    Beyond what one profile and the spread of the others may show.
    """
    slow = look.diagnosis.slowest
    if slow is None:
        return
    hosts = {number: rank.host for number, rank in look.seen.ranks.items()}
    host = slowest_host(look.diagnosis, hosts, least_pct=_BEHIND_PCT)
    if host is not None and slow.rank in host.ranks and _is_behind(host):
        yield from _slow_host(look, host)
        return
    lost = _lost_pct(look, slow.rank, slow.behind_pct)
    if not _is_behind(slow) or lost is None:
        return
    rank = look.seen.ranks[slow.rank]
    where = ", ".join(part for part in (rank.host, rank.uuid or rank.gpu) if part) or "not known where"
    yield Case(
        words={
            "who": f"rank {slow.rank} ({where})",
            "behind": slow.behind_pct,
            "others": "the other rank" if slow.of == 2 else f"the other {slow.of - 1} ranks",
            "of": " of its stage" if look.diagnosis.layout.pp > 1 else "",
            "host": rank.host or "its host",
        },
        lost_pct=lost,
        about=frozenset({slow.rank}),
    )


def _slow_host(look: Look, slow: SlowHost) -> Iterator[Case]:
    losses = [_lost_pct(look, rank, slow.behind_pct) for rank in slow.ranks]
    lost = [each for each in losses if each is not None]
    if 2 * len(lost) <= len(losses):
        return
    of = "" if look.diagnosis.layout.pp == 1 else " of its stage" if slow.stages == 1 else " of its stages"
    yield Case(
        words={
            "who": f"host {slow.host} (ranks {figures.ranges(slow.ranks)})",
            "behind": slow.behind_pct,
            "others": "the other host" if slow.of == 2 else f"the other {slow.of - 1} hosts",
            "of": of,
            "host": slow.host,
        },
        lost_pct=statistics.median(lost),
        about=frozenset({slow.host}),
    )


def _is_behind(slow: Slow | SlowHost) -> bool:
    is_sure = slow.profiles > 1 and slow.of > 2
    return slow.behind_pct >= max(_BEHIND_PCT if is_sure else _BEHIND_ONCE_PCT, _SPREADS * slow.spread_pct)


def _lost_pct(look: Look, rank: int, behind_pct: float) -> float | None:
    """What a rank that is behind costs of its step; None where that is little, or W201 says what it waits for."""
    profile = look.diagnosis.newest[rank]
    lost = 100 * look.diagnosis.own_s[rank] * (1 - 1 / (1 + behind_pct / 100)) / profile.step_s
    return None if lost < WORTH_PCT or 100 * (profile.data_s or 0.0) / profile.step_s >= lost else lost


def slower_than_planned(look: Look) -> Iterator[Case]:
    """Steps that take longer than planned, by more than plans have been off."""
    planned = look.diagnosis.planned
    if planned is None or len(look.seen.step_seconds) < _REPORTS:
        return
    step_s = statistics.median(look.seen.step_seconds)
    slower = 100 * (step_s / planned["step"] - 1)
    nodes = len({row["host"] for row in look.rows if row["host"]})
    if slower >= (_KNOWN_ERROR_PCT if nodes <= 1 else _KNOWN_ERROR_OF_NODES_PCT):
        # What costs as much and has a cause of its own is said first.
        yield Case(
            words={
                "measured": seconds(step_s),
                "planned": seconds(planned["step"]),
                "slower": slower,
                "part": _furthest(look),
            },
            lost_pct=WORTH_PCT,
        )


def _furthest(look: Look) -> str:
    """The part of a step that is furthest beyond its plan."""
    measured, planned = look.diagnosis.measured, look.diagnosis.planned
    if measured is None or planned is None:
        return ""
    beyond = {name: measured[name] - (planned[name] or 0.0) for name in _PARTS if measured[name] is not None}
    for axis, open_s in measured["exposed_comm"].items():
        beyond[f"exposed: {AXES.get(axis, axis)}"] = open_s - planned["exposed_comm"].get(axis, 0.0)
    part = max(beyond, key=lambda name: beyond[name])
    return f"; most of it is {_PARTS.get(part, part)}, {seconds(beyond[part])} longer"


_PARTS = {"compute": "compute", "data": "waiting for data", "host": "waiting for the host", "bubble": "the bubble"}


def _by_plan(planned: float | None) -> str:
    return "" if planned is None else f", {planned:.0f} % by plan"
