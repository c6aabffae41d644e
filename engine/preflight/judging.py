"""Which GPU, link or node is slower than it may be, and the whole of what a preflight found.

Knows the shares below which something is slow, and how neighbours tell a slow GPU from a slow link. Does not measure,
and does not know what a launch makes of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from engine.errors import Finding
from engine.hardware import Cluster
from engine.preflight import assumed
from engine.preflight.rings import Kind

FILE = "preflight.json"
FORM = 1

# GPUs of a kind at the same power limit differ by 3 to 5 % in products, less in copies and links, and a plan by as much
# from what is measured; a throttled GPU, a link at half its width or a bad cable costs a third or more.
SLOW_SHARE = 0.8
# What comes from the host depends on which socket a process happened to be put on.
SLOW_FROM_HOST = 0.6
# Processes on one machine take its cores from each other: of four on two cores with other jobs beside them, one was
# seen at 0.36 of the median in an all-reduce, and at 0.57 in copies.
SLOW_ON_CPU = 0.25
_MOST_NAMED = 8
_ELSEWHERE = "see what else runs there, or launch without --preflight"
# Links of two come first: what they are part of is slow with them.
_KINDS: tuple[Kind, ...] = ("pair", "nodes", "node", "all")

IN_WORDS = {
    assumed.BF16: ("multiplies bfloat16 at", ("TFLOP/s", "GFLOP/s")),
    assumed.FP8: ("multiplies float8 at", ("TFLOP/s", "GFLOP/s")),
    assumed.MEMORY: ("copies within its memory at", ("TB/s", "GB/s")),
    assumed.HOST: ("takes from the host's memory", ("GB/s", "MB/s")),
}
LINK_UNITS = ("GB/s", "MB/s")
_OVERRIDES = {
    assumed.BF16: ("bf16_tflops", "bf16_flops_per_s", 1e12),
    assumed.FP8: ("fp8_tflops", "fp8_flops_per_s", 1e12),
    assumed.MEMORY: ("hbm_tbyte_per_s", "hbm_bytes_per_s", 1e12),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A rank that did not do a part: it failed, hung in it, or said nothing at all."""

    rank: int
    part: str
    reason: str
    hangs: bool = False
    wrong: bool = False
    silent: bool = False
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An all-reduce of a group: what each of its ranks sends in GB/s, the slowest of them."""

    kind: Kind
    ranks: tuple[int, ...]
    gbyte_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that ranks have handed in: where each is, its rates by name, and the groups that exchanged."""

    cluster: Cluster
    world_size: int
    places: Mapping[int, Mapping[str, Any]]
    rates: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    links: Sequence[Link] = ()
    failed: Sequence[Failed] = ()
    reduced_bytes: int = 1
    seconds: float = 0.0

    @property
    def on_gpu(self) -> bool:
        """Whether ranks work on GPUs, of which a plan assumes rates."""
        return self.cluster.gpu.name != "cpu"

    def place(self, rank: int) -> str:
        """A rank with its host and GPU, in words."""
        there = self.places.get(rank)
        if there is None:
            return f"rank {rank}"
        gpu = there.get("gpu")
        return f"rank {rank} on {there['host']}" + (f" ({gpu['name']}, {gpu['uuid']})" if gpu else "")

    def host(self, rank: int) -> str:
        """The host of a rank."""
        return str(self.places[rank]["host"])


def judge(found: Measured) -> dict[str, Any]:
    """The verdict as the plain object of preflight.json."""
    expected = assumed.rates(found.cluster)
    links = assumed.link_rates(found.cluster, reduced_bytes=found.reduced_bytes)
    findings = [*_slow_ranks(found, expected), *_slow_links(found, links)]
    return {
        "form": FORM,
        "ok": not found.failed and not any(finding.severity == "error" for finding in findings),
        "seconds": round(found.seconds, 1),
        "world_size": found.world_size,
        "gpu": found.cluster.gpu.name,
        "ranks": [
            {"rank": rank, **place, "rates": {name: by[rank] for name, by in found.rates.items() if rank in by}}
            for rank, place in sorted(found.places.items())
        ],
        "rates": {name: _summary(by.values(), expected.get(name)) for name, by in found.rates.items()},
        "links": [asdict(link) for link in found.links],
        "link_rates": {
            kind: _summary((link.gbyte_per_s for link in found.links if link.kind == kind), links.get(kind))
            for kind in dict.fromkeys(link.kind for link in found.links)
        },
        "findings": [finding.to_json() for finding in findings],
        "failed": [asdict(each) | {"where": found.place(each.rank), "text": text} for each, text in _causes(found)],
    }


def _summary(values: Any, expected: float | None) -> dict[str, float | None]:
    sizes = list(values)
    return {"assumed": expected, "median": statistics.median(sizes), "least": min(sizes), "most": max(sizes)}


def _share_of(found: Measured, name: str = "") -> float:
    return SLOW_ON_CPU if not found.on_gpu else SLOW_FROM_HOST if name == assumed.HOST else SLOW_SHARE


def amount(value: float, units: tuple[str, str]) -> str:
    """A rate with its unit, the smaller one where little is left of the larger."""
    if value < 0.1:
        return f"{1000 * value:.3g} {units[1]}"
    return f"{value:.0f} {units[0]}" if value >= 100 else f"{value:.3g} {units[0]}"


def _why(value: float, share: float, expected: float | None, peers: Sequence[float], units: tuple[str, str]) -> str:
    """Against what a value is too low, in words; empty where it is well."""
    median = statistics.median(peers)
    reasons: list[str] = []
    if expected is not None and value < share * expected:
        reasons.append(f"{_percent(value, expected)} of the {amount(expected, units)} that the plan assumes")
    if len(peers) > 1 and value < share * median:
        reasons.append(f"{_percent(value, median)} of the {amount(median, units)} that is usual here")
    return " and ".join(reasons)


def _percent(value: float, whole: float) -> str:
    return f"{100 * value / whole:.0f} %"


def _slow_ranks(found: Measured, expected: Mapping[str, float]) -> Iterator[Finding]:
    for name, by in found.rates.items():
        does, units = IN_WORDS[name]
        values, share, rate = list(by.values()), _share_of(found, name), expected.get(name)
        slow = {rank: why for rank, value in by.items() if (why := _why(value, share, rate, values, units))}
        if rate is not None and len(by) > 1 and max(values) < share * rate:
            median = statistics.median(values)
            why = _why(median, share, rate, [median], units)
            message = f"each of the {len(by)} GPUs {does} about {amount(median, units)}, {why}"
            yield _finding("H822", found, message, _plan_with(found, name, median, rate, all_of=True))
            continue
        for rank in sorted(slow, key=lambda rank: by[rank])[:_MOST_NAMED]:
            message = f"{found.place(rank)} {does} {amount(by[rank], units)}, {slow[rank]}"
            yield _finding("H822", found, message, _plan_with(found, name, by[rank], rate))


def _plan_with(found: Measured, name: str, value: float, expected: float | None, *, all_of: bool = False) -> str:
    """The ways out: without it, or planned with it."""
    if not found.on_gpu:
        return _ELSEWHERE
    without = "" if all_of else "leave that GPU or node out, "
    if expected is None or name not in _OVERRIDES:
        return f"{without}or launch without --preflight"
    key, field_name, unit = _OVERRIDES[name]
    published = getattr(found.cluster.gpu, field_name)
    if found.cluster.calibration is not None or published is None:
        return f"{without}measure anew with titan doctor --measure, or launch without --preflight"
    slower = f"{published / unit * value / expected:.4g}"
    return f"{without}plan with what it reaches (cluster.{key} = {slower}), or launch without --preflight"


def _slow_links(found: Measured, expected: Mapping[Kind, float]) -> Iterator[Finding]:
    named: set[int] = set()
    for kind in _KINDS:
        links = [link for link in found.links if link.kind == kind]
        peers = [link.gbyte_per_s for link in links]
        rate = expected.get(kind)
        share = _share_of(found)
        slow = [link for link in links if _why(link.gbyte_per_s, share, rate, peers, LINK_UNITS)]
        # What has a slow pair in it is slow for that.
        slow = [link for link in slow if kind in ("pair", "nodes") or not named & set(link.ranks)]
        named |= {rank for link in slow for rank in link.ranks}
        for text, each in _blamed(found, kind, slow, links):
            worst = min(link.gbyte_per_s for link in each)
            why = _why(worst, share, rate, peers, LINK_UNITS)
            message = f"{text} {amount(worst, LINK_UNITS)} in an all-reduce, {why}"
            yield _finding("H823", found, message, _fix_of_link(found, kind, worst, rate))


def _blamed(
    found: Measured, kind: Kind, slow: Sequence[Link], links: Sequence[Link]
) -> Iterator[tuple[str, Sequence[Link]]]:
    """What is named for slow links, and which of them say so: a rank or node all of whose are slow, else each."""
    if kind in ("node", "all"):
        for link in slow:
            where = found.host(link.ranks[0]) if kind == "node" else "all nodes"
            yield f"the {len(link.ranks)} GPUs of {where} together send", [link]
        return
    left = list(slow)
    for end in dict.fromkeys(end for link in slow for end in _ends(found, link)):
        own = [link for link in links if end in _ends(found, link)]
        neighbours = {other for link in own for other in _ends(found, link)} - {end}
        if len(neighbours) > 1 and all(link in slow for link in own) and _are_well(found, neighbours, slow, links):
            name = found.place(end) if kind == "pair" else f"node {end} ({_host_of_node(found, end)})"
            yield f"{name} is slow to {len(neighbours)} neighbours: it sends", own
            left = [link for link in left if link not in own]
    for link in sorted(left, key=lambda link: link.gbyte_per_s)[:_MOST_NAMED]:
        first, second = (found.place(rank) for rank in link.ranks)
        yield f"the link between {first} and {second} carries", [link]


def _ends(found: Measured, link: Link) -> tuple[int, ...]:
    """What a link of two joins: ranks in a node, or nodes."""
    return link.ranks if link.kind == "pair" else tuple(found.places[rank]["node"] for rank in link.ranks)


def _are_well(found: Measured, ends: set[int], slow: Sequence[Link], links: Sequence[Link]) -> bool:
    """Whether each of these has a link that is not slow."""
    return all(any(link not in slow for link in links if end in _ends(found, link)) for end in ends)


def _host_of_node(found: Measured, node: int) -> str:
    return next(str(place["host"]) for place in found.places.values() if place["node"] == node)


def _fix_of_link(found: Measured, kind: Kind, value: float, expected: float | None) -> str:
    if not found.on_gpu:
        return _ELSEWHERE
    across = kind in ("nodes", "all")
    without = f"leave that {'node' if across else 'GPU or node'} out, "
    gpu, network = found.cluster.gpu, found.cluster.network_gbit_per_s_per_gpu
    published = network if across else gpu.nvlink_bytes_per_s and 1e-9 * gpu.nvlink_bytes_per_s
    if expected is None or published is None or (not across and found.cluster.calibration is not None):
        return f"{without}or launch without --preflight"
    key = "network_gbit_per_s_per_gpu" if across else "nvlink_gbyte_per_s"
    slower = f"{published * value / expected:.4g}"
    return f"{without}plan with what it carries (cluster.{key} = {slower}), or launch without --preflight"


def _finding(rule: str, found: Measured, message: str, fix: str) -> Finding:
    """An error on GPUs; processors are only compared with each other, and that is no reason not to train."""
    made = Finding(rule=rule, severity="error", key="", message=message, fix=fix)
    return made if found.on_gpu else replace(made, severity="warning")


def _between(found: Measured, group: Sequence[int]) -> str:
    """The links of a group, in words."""
    if len(group) == 2:
        return f"the link between {found.place(group[0])} and {found.place(group[1])}"
    hosts = tuple(dict.fromkeys(found.host(rank) for rank in group))
    where = f"of {hosts[0]}" if len(hosts) == 1 else f"of all {len(hosts)} nodes"
    return f"the {len(group)} ranks {where} together, though two alone did so,"


def _causes(found: Measured) -> Iterator[tuple[Failed, str]]:
    """Ranks that failed, those first that explain the others, with words; a dead link is told once."""
    silent = {each.rank for each in found.failed if each.silent}
    told: set[tuple[int, ...]] = set()
    for each in sorted(found.failed, key=lambda each: (not each.silent, each.hangs, each.rank)):
        where = found.place(each.rank)
        if each.hangs and each.group:
            if each.group in told or silent & set(each.group):
                continue
            told.add(each.group)
            yield each, f"{_between(found, each.group)} {each.reason} in an all-reduce"
        else:
            yield each, f"{where} {each.reason} ({each.part})"
