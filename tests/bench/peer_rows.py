"""Rows and ratios of peers.toml, and how a ratio is judged.

Knows what is asked and which figures of runs answer it. Does not know how anything is run (bench_peers.py).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal

Side = Literal["torchtitan", "titan"]
Kind = Literal["speed", "memory", "first step", "losses"]
Result = dict[str, Any]

AS_FAST = 0.99
"""Share of the peer's speed from which one of ours counts as equal where memory is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    """One setting that both are run at, as peers.toml explains it."""

    name: str
    layers: int
    batch: int
    seq_len: int
    steps: int
    log_freq: int
    leave_out: int
    sides: tuple[Side, ...] = ("torchtitan", "titan")
    peer: dict[str, Any] = field(default_factory=dict)
    titan: tuple[str, ...] = ()
    own: bool = False
    caches: str = "shared"
    cold: bool = False
    cpu: bool = False
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """What is asked: the best of our rows over the best of theirs is `least`; of losses, the largest distance."""

    name: str
    kind: Kind
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    least: float = 0.0
    within: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came out; `holds` None: not known, as nothing was run."""

    ratio: Ratio
    holds: bool | None
    words: str
    value: float | None = None


def read(path: Path) -> tuple[tuple[PeerRow, ...], tuple[Ratio, ...]]:
    """Rows and ratios of a file."""
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = tuple(PeerRow(**told["defaults"] | _tuples(row)) for row in told["row"])
    ratios = tuple(Ratio(**_tuples(ratio)) for ratio in told["ratio"])
    known = {row.name for row in rows}
    unknown = {name for ratio in ratios for name in (*ratio.ours, *ratio.theirs)} - known
    assert not unknown, f"ratios of rows that are not there: {unknown}"
    assert len(known) == len(rows), "two rows have one name"
    return rows, ratios


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def chosen(rows: tuple[PeerRow, ...], ratios: tuple[Ratio, ...], words: list[str], *, gpus: int) -> list[PeerRow]:
    """Rows that this machine has GPUs for (0: those for a CPU) and any word names.

    A word is a part of a row's name, or of the name of a ratio that needs it.
    """
    wanted = {
        name for ratio in ratios if any(word in ratio.name for word in words) for name in (*ratio.ours, *ratio.theirs)
    }
    # A word that is a whole name means that row alone.
    names = {row.name for row in rows}
    parts = [word for word in words if word not in names]
    return [
        row
        for row in rows
        if (row.cpu if gpus == 0 else not row.cpu and row.gpus <= gpus)
        and (not words or row.name in words or row.name in wanted or any(part in row.name for part in parts))
    ]


def judge(ratio: Ratio, results: list[Result]) -> Verdict:
    """Compares the best of each side."""
    ours, theirs = _of(results, "titan", ratio.ours), _of(results, "torchtitan", ratio.theirs)
    if not ours or not theirs:
        return Verdict(ratio=ratio, holds=None, words="not run")
    mine, other = _ran(ours), _ran(theirs)
    if not mine:
        return Verdict(ratio=ratio, holds=False, words=f"titan failed: {_why(ours)}")
    if not other:
        # A peer that cannot is no slower; one that broke for another reason was not measured.
        beaten = all(result.get("out_of_memory") for result in theirs) and ratio.kind == "speed"
        words = f"torchtitan {_why(theirs)}; titan {_best(mine, 'tokens_per_s_per_gpu')}"
        return Verdict(ratio=ratio, holds=True if beaten else None, words=words)
    match ratio.kind:
        case "speed":
            return _more(ratio, mine, other, "tokens_per_s_per_gpu")
        case "first step":
            return _less(ratio, mine, other, "first_step_s")
        case "memory":
            fastest = max(result["tokens_per_s_per_gpu"] for result in other)
            as_fast = [result for result in mine if result["tokens_per_s_per_gpu"] >= AS_FAST * fastest]
            if not as_fast:
                return Verdict(ratio=ratio, holds=False, words="no row of titan is as fast")
            reserved, active = (_less(ratio, as_fast, other, f"peak_{what}_gib") for what in ("reserved", "active"))
            words = f"reserved {reserved.words}; active {active.words}, ratio {active.value:.3f}"
            return replace(reserved, words=words)
        case "losses":
            return _near(ratio, mine[0], other[0])


def _of(results: list[Result], side: Side, names: tuple[str, ...]) -> list[Result]:
    return [result for result in results if result["side"] == side and result["row"] in names]


def _ran(results: list[Result]) -> list[Result]:
    return [result for result in results if "error" not in result]


def _why(results: list[Result]) -> str:
    return "out of memory" if all(result.get("out_of_memory") for result in results) else "failed"


def _best(results: list[Result], key: str, *, most: bool = True) -> str:
    best = (max if most else min)(results, key=lambda result: result[key])
    return f"{best[key]:,.1f} ({best['row']})"


def _more(ratio: Ratio, mine: list[Result], other: list[Result], key: str) -> Verdict:
    value = max(result[key] for result in mine) / max(result[key] for result in other)
    words = f"{_best(mine, key)} against {_best(other, key)}"
    return Verdict(ratio=ratio, holds=value >= ratio.least, words=words, value=value)


def _less(ratio: Ratio, mine: list[Result], other: list[Result], key: str) -> Verdict:
    value = min(result[key] for result in other) / min(result[key] for result in mine)
    words = f"{_best(mine, key, most=False)} against {_best(other, key, most=False)}"
    return Verdict(ratio=ratio, holds=value >= ratio.least, words=words, value=value)


def _near(ratio: Ratio, mine: Result, other: Result) -> Verdict:
    steps = sorted(set(mine["losses"]) & set(other["losses"]), key=int)
    distances = [abs(mine["losses"][step] - other["losses"][step]) / other["losses"][step] for step in steps]
    words = f"largest {max(distances):.2e}, mean {mean(distances):.2e} over {len(steps)} steps"
    return Verdict(ratio=ratio, holds=max(distances) <= ratio.within, words=words, value=max(distances))
