"""How well predicted speed orders and moves as published runs do: rankings of layouts, single changes, scaling.

Knows the rows to compare. Judges nothing: bounds stand in tests/engine/planner/test_timing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.planner.plan import Plan
from tests.bench.published import torchtitan, vtrain
from tests.bench.published.case import Case

# Their note: the cards were limited in power, so only ratios and memory count.
_LIMITED = frozenset({"tt-f1", "tt-f3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """One job in many layouts.

    `regret_pct`: how much slower than the best the layout is that was predicted best. `spearman` is the correlation
    of the orders; `chosen` and `best` are the layouts in words.
    """

    group: str
    rows: int
    regret_pct: float
    spearman: float
    chosen: str
    best: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One setting changed, everything else alike: what it gained as published and as predicted, in percent."""

    name: str
    published_pct: float
    predicted_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How much of a smaller run's speed or utilisation a larger one keeps, in percent, as published and predicted."""

    name: str
    published_pct: float
    predicted_pct: float


def timed(cases: Sequence[Case]) -> list[Case]:
    """The cases that state a speed which the hardware, and no limit set on it, explains."""
    return [case for case in cases if case.tokens_per_s_per_gpu is not None and case.id not in _LIMITED]


def on_hopper(case: Case) -> bool:
    """Whether a run was on H100 or H200."""
    return str(case.values["cluster.gpu"]).startswith("h")


def speed_of(plan: Plan) -> float:
    """Predicted tokens a second of one GPU."""
    assert plan.tokens_per_s_per_gpu is not None, "published runs are on known hardware"
    return plan.tokens_per_s_per_gpu


def measured(case: Case) -> float:
    """Published tokens a second of one GPU."""
    assert case.tokens_per_s_per_gpu is not None, f"{case.id} states no speed"
    return case.tokens_per_s_per_gpu


def ranking(group: str) -> Ranking:
    """How the predicted order of the layouts of one of vTrain's jobs compares with the measured one."""
    cases = vtrain.groups()[group]
    real = [measured(case) for case in cases]
    predicted = [speed_of(case.plan()) for case in cases]
    chosen, best = max(zip(predicted, range(len(cases)), strict=True))[1], real.index(max(real))
    return Ranking(
        group=group,
        rows=len(cases),
        regret_pct=100 * (max(real) / real[chosen] - 1),
        spearman=spearman(real, predicted),
        chosen=cases[chosen].note,
        best=cases[best].note,
    )


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Correlation of ranks, of values that are all different."""
    count = len(left)
    squares = sum((one - other) ** 2 for one, other in zip(_ranks(left), _ranks(right), strict=True))
    return 1 - 6 * squares / (count * (count**2 - 1))


def _ranks(values: Sequence[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    return [order.index(index) for index in range(len(values))]


# Name of a change: row before, row after.
MOVES = {
    "async TP, 70B on 256, float8": ("tt-a11", "tt-a12"),
    "async TP, 70B on 256, float8 by rows": ("tt-b5", "tt-b6"),
    "compile, 8B on 8": ("tt-a1", "tt-a2"),
    "float8, 8B on 8": ("tt-a2", "tt-a3"),
    "float8, 8B on 8, batch 1": ("tt-e4", "tt-e6"),
    "float8 instead of by rows, 8B on 2": ("h2-4", "h2-3"),
    "interleaving, 405B on 512": ("tt-a13", "tt-a14"),
}


def move(name: str) -> Move:
    """A pair of torchtitan's rows that differ in one setting."""
    cases = {case.id: case for case in torchtitan.cases()}
    before, after = (cases[row] for row in MOVES[name])
    return Move(
        name=name,
        published_pct=100 * (measured(after) / measured(before) - 1),
        predicted_pct=100 * (speed_of(after.plan()) / speed_of(before.plan()) - 1),
    )


def scaling() -> list[Scaling]:
    """More GPUs with as much work each, and the mission's rows from 8 to 512 GPUs by their use of the chip."""
    cases = {case.id: case for case in torchtitan.cases()}
    kept = {
        "8B, FSDP 8 -> 128, speed": ("tt-a1", "tt-a8", False),
        "8B, FSDP 8 -> 128, float8, speed": ("tt-a3", "tt-a10", False),
        "8B on 8 -> 70B on 256, float8, MFU": ("tt-a3", "tt-a12", True),
        "8B on 8 -> 405B on 512, float8, MFU": ("tt-a3", "tt-a14", True),
    }
    found = []
    for name, (small, large, by_use) in kept.items():
        plans = [cases[row].plan() for row in (small, large)]
        # MFU of a published speed: the model's FLOPs a token are in the predicted pair.
        costs = [(plan.mfu_pct or 0.0) / speed_of(plan) if by_use else 1.0 for plan in plans]
        real = [measured(cases[row]) * cost for row, cost in zip((small, large), costs, strict=True)]
        predicted = [speed_of(plan) * cost for plan, cost in zip(plans, costs, strict=True)]
        found.append(
            Scaling(
                name=name,
                published_pct=100 * real[1] / real[0],
                predicted_pct=100 * predicted[1] / predicted[0],
            )
        )
    return found
