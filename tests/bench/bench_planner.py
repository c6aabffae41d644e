"""What titan predicts for runs that others published, against what they reached.

`python tests/bench/bench_planner.py [--output FILE] [WORDS]` prints each row of the tables whose name holds one of the
WORDS (all without), then per table the mean and the largest absolute error and the bias, all in percent; then how
layouts rank, what single settings move, and scaling. Pure arithmetic: no GPU, seconds. It judges nothing: bounds
stand in tests/engine/planner/test_stack.py and test_timing.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.published import foundry, nvidia, own, simumax, speed, torchtitan, vtrain
from tests.bench.published.as_run import plan_as_run
from tests.bench.published.case import GIB, Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """One row of one table: what was measured and what was predicted, in `unit`; and a word about the run."""

    id: str
    measured: float
    predicted: float
    unit: str
    note: str = ""

    @property
    def pct(self) -> float:
        """How much more is predicted than was measured, in percent."""
        return 100 * (self.predicted / self.measured - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The errors of a table in percent: what a reader needs before any single row."""

    rows: int
    mean_abs_pct: float
    largest_abs_pct: float
    bias_pct: float
    within_20_pct: float


def summary(errors: Sequence[Error]) -> Summary:
    """Mean, largest and signed mean of at least one error."""
    absolute = [abs(error.pct) for error in errors]
    return Summary(
        rows=len(errors),
        mean_abs_pct=sum(absolute) / len(errors),
        largest_abs_pct=max(absolute),
        bias_pct=sum(error.pct for error in errors) / len(errors),
        within_20_pct=100 * sum(share <= 20 for share in absolute) / len(errors),
    )


def memory_error(case: Case) -> Error:
    """The fullest rank's bytes, reserved or allocated, whichever was measured."""
    assert case.memory_gib is not None, f"{case.id} states no memory"
    memory = plan_as_run(case).memory
    held = memory.reserved_bytes if case.memory_is == "reserved" else memory.peak_bytes
    assert held is not None, "a GPU has an allocator"
    return Error(id=case.id, measured=case.memory_gib, predicted=held / GIB, unit="GiB", note=case.note)


def is_pipelined(case: Case) -> bool:
    """Whether a run has pipeline stages."""
    return int(case.values["parallelism.pipeline_parallel_degree"]) > 1


def torchtitan_memory(*, pipelined: bool) -> list[Error]:
    """Reserved bytes of torchtitan's rows that state them, with or without a pipeline."""
    known = [case for case in torchtitan.cases() if case.memory_gib is not None]
    return [memory_error(case) for case in known if is_pipelined(case) == pipelined]


def speed_errors(cases: Sequence[Case]) -> list[Error]:
    """Tokens a second of one GPU of all rows that state them."""
    return [
        Error(id=case.id, measured=speed.measured(case), predicted=speed.speed_of(plan_as_run(case)), unit="tok/s")
        for case in speed.timed(cases)
    ]


def out_of_memory() -> dict[str, bool]:
    """Rows that ran out of memory, and whether they are predicted to fit."""
    return {case.id: bool(case.plan().memory.fits) for case in torchtitan.cases() if case.ran_out_of_memory}


TABLES: dict[str, Callable[[], list[Error]]] = {
    "torchtitan memory": lambda: torchtitan_memory(pipelined=False),
    "torchtitan memory, pipelined": lambda: torchtitan_memory(pipelined=True),
    "simumax memory": lambda: [memory_error(case) for case in simumax.cases()],
    "own memory, held out": lambda: [memory_error(case) for case in own.held_out()],
    "llm-foundry speed": lambda: speed_errors(foundry.cases()),
    "own speed": lambda: speed_errors(own.cases()),
    "own speed, held out": lambda: speed_errors(own.held_out()),
    "torchtitan speed": lambda: speed_errors(torchtitan.cases()),
    "torchtitan speed, H100 and H200": lambda: speed_errors(list(filter(speed.on_hopper, torchtitan.cases()))),
    "nvidia speed": lambda: speed_errors(nvidia.cases()),
    "vtrain speed": lambda: speed_errors(vtrain.cases()),
}


def show(name: str, errors: Sequence[Error]) -> Summary:
    """Prints a table, the worst row first."""
    found = summary(errors)
    numbers = f"mean {found.mean_abs_pct:.1f} %, largest {found.largest_abs_pct:.1f} %, bias {found.bias_pct:+.1f} %"
    print(f"\n{name}: {numbers}, {found.within_20_pct:.0f} % of rows within 20 %")
    for error in sorted(errors, key=lambda error: -abs(error.pct)):
        numbers = f"{error.measured:10.2f} {error.predicted:10.2f} {error.unit:<8} {error.pct:+6.1f} %"
        print(f"  {error.id:<12} {numbers}  {error.note}".rstrip())
    return found


def show_orders() -> dict[str, object]:
    """Prints rankings, moves and scaling; gives them as rows."""
    rankings = [speed.ranking(group) for group in vtrain.groups()]
    moves, scaling = [speed.move(name) for name in speed.MOVES], speed.scaling()
    print("\nranking of layouts of one job: regret, Spearman, what was chosen and what was best")
    for found in rankings:
        print(f"  {found.group:<8} {found.regret_pct:5.1f} % {found.spearman:6.2f}   {found.chosen} | {found.best}")
    for title, rows in (("one setting changed", moves), ("scaling", scaling)):
        print(f"\n{title}: published, predicted")
        for row in rows:
            print(f"  {row.name:<38} {row.published_pct:+6.1f} % {row.predicted_pct:+6.1f} %")
    named = {"ranking": rankings, "moves": moves, "scaling": scaling}
    return {name: [asdict(row) for row in rows] for name, rows in named.items()}


def main(arguments: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="tables whose name holds one of these words")
    parser.add_argument("--output", type=Path, help="JSON file for all rows and summaries")
    options = parser.parse_args(arguments)
    kept: dict[str, object] = {}
    for name, errors_of in TABLES.items():
        if options.words and not any(word in name for word in options.words):
            continue
        errors = errors_of()
        rows = [asdict(error) | {"pct": error.pct} for error in errors]
        kept[name] = {"summary": asdict(show(name, errors)), "rows": rows}
    for case_id, fits in out_of_memory().items():
        print(f"  {case_id} ran out of memory, predicted to {'fit' if fits else 'not fit'}")
    kept["out of memory"] = out_of_memory()
    kept |= show_orders()
    if options.output:
        options.output.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
