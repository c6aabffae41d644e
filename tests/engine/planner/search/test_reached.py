"""What a search leaves out because its answer is the same without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.planner.batch import Batch
from engine.planner.mesh import Mesh
from engine.planner.search import Question, search
from engine.planner.search.evaluate import Point
from engine.planner.search.layouts import Layout
from engine.planner.search.options import Options
from engine.planner.search.reached import Reached
from engine.planner.timing import Time
from engine.rules.layouts import refusal

GIB = 1 << 30
FSDP = Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1))


def point(layout: Layout, *, rate: float, gib: int, batch: int = 4) -> Point:
    return Point(
        layout=layout,
        options=Options(),
        batch=Batch(local=batch, microbatch=batch),
        needed_bytes=gib * GIB,
        time=Time(),
        tokens_per_s_per_gpu=rate,
    )


def splits(tp: int) -> Layout:
    return Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=8 // tp, cp=1, tp=tp))


def test_judging_all_of_it_gives_the_same_answer(ask: Callable[..., Question], monkeypatch: pytest.MonkeyPatch) -> None:
    question = replace(ask(cluster__nodes=2, fixed={"parallelism.context_parallel_degree": 1}), top=1)
    usual = search(question, refusal=refusal)
    monkeypatch.setattr(Reached, "outruns", lambda *_: False)
    whole = search(question, refusal=refusal)
    assert usual.searched < whole.searched, "something is left out"
    assert (usual.candidates, usual.pareto, usual.rejected) == (whole.candidates, whole.pareto, whole.rejected)


def test_a_layout_that_may_be_shown_is_not_outrun(ask: Callable[..., Question]) -> None:
    reached = Reached(ask("max-performance"))
    reached.add(point(FSDP, rate=9000, gib=40))
    assert not reached.outruns(FSDP, Options(), 1.0)


def test_what_is_slower_than_all_that_is_shown_is_outrun(ask: Callable[..., Question]) -> None:
    reached = Reached(ask("max-performance"))
    for pp in (1, 2, 4, 8, 16, 32, 64, 128):
        mesh = Mesh(pp=pp, dp_replicate=1, dp_shard=8, cp=1, tp=2)
        reached.add(point(Layout(mesh=mesh), rate=9000, gib=40))
    assert reached.outruns(splits(2), Options(), 8000)
    assert not reached.outruns(splits(2), Options(), 8900)
    assert not reached.outruns(FSDP, Options(), 8000), "the best of its kind is not known yet"


def test_what_only_fits_outruns_nothing(ask: Callable[..., Question]) -> None:
    reached = Reached(ask("max-performance"))
    for pp in (1, 2, 4, 8, 16, 32, 64, 128):
        mesh = Mesh(pp=pp, dp_replicate=1, dp_shard=8, cp=1, tp=2)
        reached.add(point(Layout(mesh=mesh), rate=9000, gib=73))
    assert not reached.outruns(splits(2), Options(), 8000)


def test_only_a_batch_that_stays_beats_another(ask: Callable[..., Question]) -> None:
    reached = Reached(ask("max-performance"))
    reached.settle([point(FSDP, rate=9000, gib=40, batch=2), point(FSDP, rate=9010, gib=50, batch=4)])
    assert reached.beats(40 * GIB, 9000)
    assert not reached.beats(50 * GIB, 9010)
    assert not reached.beats(39 * GIB, 9000)
