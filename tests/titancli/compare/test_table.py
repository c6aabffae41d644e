"""The whole comparison as text, in two widths."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from titancli import compare
from titancli.charts import Pen
from titancli.compare.beside import Beside, beside
from titancli.compare.reading import read_run
from titancli.compare.table import lines_of

MakeRun = Callable[..., Path]
GOLDEN = Path(__file__).parent / "golden"
PROFILED = {
    "compute_s": 0.7,
    "exposed_comm_s": {"tp": 0.1, "dp_shard": 0.08},
    "bubble_s": 0.0,
    "data_s": 0.01,
    "host_s": 0.04,
    "other_s": 0.07,
}
BROKEN = {"rank": 3, "host": "node1", "type": "ValueError", "message": "the loss of step 31 is not finite"}


def losses(count: int, rate: float, first: int = 1) -> list[float]:
    return [2.0 + 8.0 * math.exp(-rate * step) for step in range(first, first + count)]


@pytest.fixture
def compared(make_run: MakeRun) -> Beside:
    """Three runs on GPUs: one to its end, one with another batch that was resumed, one that failed early."""
    slow = '[compile]\nenable = false\n[parallelism]\npipeline_parallel_schedule = "1F1B"\n'
    eager = make_run("llama-eager", losses(60, 0.1), gpu="h200", idle=PROFILED, step_s=1.0, log_freq=5, config=slow)
    fast = '[compile]\nenable = true\n[parallelism]\npipeline_parallel_schedule = "Interleaved1F1B"\n'
    how = {"gpu": "h200", "step_s": 0.8, "tokens": 1536, "log_freq": 4, "config": fast, "steps": 50}
    make_run("llama-compile", losses(33, 0.12), ended={}, **how)
    again = make_run("llama-compile", losses(30, 0.12, first=21), resumed_from=20, **how)
    failed = {"reason": "x", "exit_code": 1, "first_failure": BROKEN}
    wide = {"gpu": "h200", "step_s": 0.6, "world_size": 4, "config": slow, "steps": 60}
    bad = make_run("llama-float8", losses(30, 0.09), ended=failed, **wide)
    return beside([read_run(run) for run in (eager, again, bad)])


def told(compared: Beside, width: int) -> str:
    """What is written into a pipe of so many columns."""
    lines = lines_of(compared, width=width, colour=False)
    pen = Pen(has_blocks=True, has_colour=False)
    lines += compare.drawings(compared, ("steps", "tokens", "time"), 0.0, width=width, height=12, pen=pen)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("width", [60, 100])
def test_text_is_the_one_that_is_kept(compared: Beside, width: int) -> None:
    assert told(compared, width) == (GOLDEN / f"compare-{width}.txt").read_text("utf-8")


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120])
def test_no_line_is_longer_than_the_window(compared: Beside, width: int) -> None:
    assert [line for line in told(compared, width).splitlines() if len(line) > width] == []


def test_marks_have_the_colour_of_their_curve(compared: Beside) -> None:
    lines = lines_of(compared, width=80, colour=True)
    assert [re.findall(r"\x1b\[(\d+)m([A-C])\x1b", line) for line in lines[1:4]] == [
        [("34", "A")],
        [("33", "B")],
        [("32", "C")],
    ]


@pytest.mark.parametrize("count", [1, 2, 20, 62])
def test_as_many_runs_as_there_are_marks_fit_a_narrow_window(make_run: MakeRun, count: int) -> None:
    names: Sequence[str] = [f"a-rather-long-name-of-a-sweep-{number}-with-an-end" for number in range(count)]
    runs = [read_run(make_run(name, [3.0, 2.0], config=f"x = {index}\n")) for index, name in enumerate(names)]
    lines = told(beside(runs), 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.startswith("  ") and "finished" in line for line in lines) == count


def test_key_with_many_values_names_runs_by_their_marks(make_run: MakeRun) -> None:
    runs = [make_run(name, [1.0], config=f"[x]\ny = {name != 'b'}\n".lower()) for name in "abcd"]
    lines = lines_of(beside([read_run(run) for run in runs]), width=80, colour=False)
    assert lines[lines.index("what differs") + 1] == "  x.y  true: A, C, D; false: B"


def test_runs_that_differ_in_nothing_say_so(make_run: MakeRun) -> None:
    lines = lines_of(beside([read_run(make_run(name, [1.0])) for name in "ab"]), width=80, colour=False)
    assert lines[lines.index("what differs") + 1] == "  nothing"


def test_runs_without_a_step_say_what_they_do(make_run: MakeRun) -> None:
    runs = [make_run(name, [], ended={}, steps=9) for name in "ab"]
    lines = lines_of(beside([read_run(run) for run in runs]), width=80, colour=False)
    assert [line.split("  ")[-1] for line in lines[1:3]] == ["no step yet of 9", "no step yet of 9"]
    assert lines[-1] == "no run has come to a step yet"


def test_validation_losses_are_compared_where_a_run_has_one(make_run: MakeRun) -> None:
    runs = [make_run("one", losses(4, 0.1), validation=2.0), make_run("two", losses(4, 0.1), validation=2.5)]
    text = told(beside([read_run(run) for run in [*runs, make_run("three", losses(4, 0.1))]]), 100)
    block = text[text.index("validation loss") :].split("\n\n")[0]
    assert "2.0000" in block
    assert "+25.0 %" in block
    assert "n/a" in block
