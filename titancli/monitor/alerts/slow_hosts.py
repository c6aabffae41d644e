"""A host that is slow as a whole: its ranks are all behind those of other hosts that do the same work.

Pure functions over a diagnosis and where ranks are. Knows how hosts are compared: stage by stage, each with the median
of its ranks. Does not know what is said of one (lost_time).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from titancli.monitor.diagnosis import Diagnosis, behind_others

# One rank in eight may keep up: its share of the work may be the lesser one.
_NEARLY_ALL = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost:
    """A host and by how much it is behind: percent of the median of the other hosts of its stages, `of` in all.

    `spread_pct` is how far those others lie apart, `profiles` in how many of them every rank of it was seen.
    """

    host: str
    ranks: tuple[int, ...]
    stages: int
    behind_pct: float
    spread_pct: float
    of: int
    profiles: int


def slowest_host(diagnosis: Diagnosis, hosts: Mapping[int, str | None], *, least_pct: float) -> SlowHost | None:
    """The host that is furthest behind, of those of which nearly every rank is so by `least_pct`.

    `hosts` is where each rank is; None where no host of two ranks or more is slow as a whole.
    """
    behind: dict[str, list[tuple[float, float, int]]] = {}
    late: dict[str, int] = {}
    members: dict[str, list[int]] = {}
    for ranks in diagnosis.by_stage.values():
        there: dict[str, list[int]] = {}
        for rank in ranks:
            if (host := hosts.get(rank)) is not None:
                there.setdefault(host, []).append(rank)
        if len(there) < 2:
            continue
        middle_s = {host: statistics.median(diagnosis.own_s[rank] for rank in each) for host, each in there.items()}
        for host, (pct, spread_pct) in behind_others(middle_s).items():
            usual_s = middle_s[host] / (1 + pct / 100)
            behind.setdefault(host, []).append((pct, spread_pct, len(there)))
            members.setdefault(host, []).extend(there[host])
            enough_s = usual_s * (1 + least_pct / 100)
            late[host] = late.get(host, 0) + sum(diagnosis.own_s[rank] >= enough_s for rank in there[host])
    slow = [host for host, each in members.items() if len(each) > 1 and late[host] >= _NEARLY_ALL * len(each)]
    if not slow:
        return None
    host = max(slow, key=lambda host: statistics.median(pct for pct, _, _ in behind[host]))
    return SlowHost(
        host=host,
        ranks=tuple(sorted(members[host])),
        stages=len(behind[host]),
        behind_pct=statistics.median(pct for pct, _, _ in behind[host]),
        spread_pct=max(spread for _, spread, _ in behind[host]),
        of=max(count for _, _, count in behind[host]),
        profiles=min(len(diagnosis.profiles[rank]) for rank in members[host]),
    )
