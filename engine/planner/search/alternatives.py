"""Layouts that people would think of beside the winner, and why each lost.

Knows the well-known kinds of layouts, and the winner with one thing changed. Does not know how seconds are compared
(reasons) or what was judged (survey).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from engine.config import ScheduleName
from engine.planner.batch import Batch
from engine.planner.mesh import Mesh
from engine.planner.plan import Plan
from engine.planner.recompute import Mode
from engine.planner.schedule import SINGLE_STAGE
from engine.planner.search.evaluate import Point
from engine.planner.search.layouts import LAYERS, SCHEDULE, Free, Kind, kind_of
from engine.planner.search.offer import Offer
from engine.planner.search.options import (
    ASYNC_TP,
    COMPILE,
    FLOAT8,
    LOCAL_BATCH,
    MICROBATCH,
    MODE,
    RESHARD,
    has_float8,
)
from engine.planner.search.order import ranked
from engine.planner.search.question import Alternative, Question
from engine.planner.search.reasons import against_written, too_large, verdict
from engine.planner.search.survey import Survey
from engine.planner.update import copy_bytes, holds_whole

# How the kinds of layouts are called, those that ask for least first.
_KINDS: tuple[tuple[Kind, str], ...] = (
    (frozenset(), "FSDP alone"),
    (frozenset({"replicate"}), "HSDP"),
    (frozenset({"tp"}), "FSDP and TP"),
    (frozenset({"pp"}), "FSDP and PP"),
    (frozenset({"tp", "pp"}), "3D: FSDP, TP and PP"),
    (frozenset({"cp"}), "FSDP and CP"),
)
_MODES: tuple[tuple[Mode, str], ...] = (
    ("none", "no recompute"),
    ("selective", "selective recompute"),
    ("full", "full recompute"),
)
_SCHEDULES: tuple[ScheduleName, ...] = (
    "1F1B",
    "Interleaved1F1B",
    "GPipe",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)

_Change: TypeAlias = tuple[str, str, Point]
"""A name, the key that is changed, and the winner with that change."""


def alternatives(
    question: Question, survey: Survey, offer: Offer, winner: tuple[Point, Plan], written: dict[str, Any] | None
) -> Iterator[Alternative]:
    """Each with its reason, one line: the layout that the config has already, kinds of layouts, single changes."""
    if written is not None:
        plan = offer.plan(written)
        name = "as written" if isinstance(plan, str) else f"as written ({axes(plan.mesh)})"
        reason = plan if isinstance(plan, str) else against_written(question, plan, winner[1])
        yield Alternative(name=name, values=offer.keys(written), reason=reason)
    for kind, name in _KINDS:
        if kind != kind_of(winner[0].layout.mesh):
            yield from _of_kind(question, survey, offer, kind, name, winner)
    free = Free(question)
    for name, key, point in _changes(question, winner[0]):
        if not free.fixes(key):
            if point.options != winner[0].options:
                name, point = _with_its_own_batch(question, survey, name, point)
            yield _alternative(question, offer, name, point, winner)


def axes(mesh: Mesh) -> str:
    """The axes of more than one rank, as in `FSDP 8 x TP 8 x PP 8`."""
    degrees = {"replicate": mesh.dp_replicate, "FSDP": mesh.dp_shard, "CP": mesh.cp, "TP": mesh.tp, "PP": mesh.pp}
    return " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "one rank"


def _of_kind(
    question: Question, survey: Survey, offer: Offer, kind: Kind, name: str, winner: tuple[Point, Plan]
) -> Iterator[Alternative]:
    """The best layout of a kind, or the one that came nearest to fitting; nothing where there is none."""
    points = [point for point in survey.points.values() if kind_of(point.layout.mesh) == kind]
    best = next(ranked(question, points), survey.tightest.get(kind))
    if best is not None and points:
        yield _alternative(question, offer, f"{name} ({axes(best.layout.mesh)})", best, winner)
    elif best is not None:
        reason = f"at its smallest it {too_large(best.needed_bytes, question.cluster.gpu.memory_bytes)}"
        named = f"{name} ({axes(best.layout.mesh)})"
        yield Alternative(name=named, values=offer.keys(best.values()), reason=reason)


def _with_its_own_batch(question: Question, survey: Survey, name: str, point: Point) -> tuple[str, Point]:
    """The best of a layout with these options, or its smallest where none fits, each with a batch of its own.

    The name tells the batch where it is not the winner's.
    """
    alike = survey.alike(point.layout, point.options)
    if any(each.batch == point.batch for each in alike):
        return name, point
    best = next(ranked(question, alike), None) or survey.smallest(point.layout, point.options)
    if best is None or best.batch == point.batch:
        return name, point
    size = best.batch.microbatch
    return f"{name}, {f'microbatches of {size}' if best.layout.mesh.pp > 1 else f'batch {size}'}", best


def _alternative(question: Question, offer: Offer, name: str, point: Point, winner: tuple[Point, Plan]) -> Alternative:
    plan = offer.plan(point.values())
    reason = plan if isinstance(plan, str) else verdict(question, (point, plan), winner)
    return Alternative(name=name, values=offer.keys(point.values()), reason=reason)


def _changes(question: Question, winner: Point) -> Iterator[_Change]:
    """One thing changed at a time; the batch follows where it has to."""
    options, mesh = winner.options, winner.layout.mesh
    for mode, name in _MODES:
        if mode != options.mode:
            yield name, MODE, replace(winner, options=replace(options, mode=mode))
    if has_float8(question.config, question.cluster):
        # Async TP is not in force beside float8.
        toggled = replace(options, float8=not options.float8, async_tp=False)
        yield "no float8" if options.float8 else "float8", FLOAT8, replace(winner, options=toggled)
    toggled = replace(options, compiled=not options.compiled, async_tp=False)
    yield "no compile" if options.compiled else "compile", COMPILE, replace(winner, options=toggled)
    if mesh.tp > 1 and options.compiled and not options.float8:
        toggled = replace(options, async_tp=not options.async_tp)
        yield "no async TP" if options.async_tp else "async TP", ASYNC_TP, replace(winner, options=toggled)
    if holds_whole(mesh) and copy_bytes(question.config):
        keeps = options.reshard != "always"
        name = "copies made for each use" if keeps else "copies kept"
        yield name, RESHARD, replace(winner, options=replace(options, reshard="always" if keeps else "default"))
    if mesh.fsdp > 1:
        keeps = options.reshard == "never" or (options.reshard == "default" and mesh.pp > 1)
        name = "weights freed after forward" if keeps else "weights kept gathered until backward"
        toggled = replace(options, reshard="always" if keeps else "never")
        yield name, RESHARD, replace(winner, options=toggled)
    yield from _of_pipeline(winner)
    yield from _of_batch(winner)


def _of_pipeline(winner: Point) -> Iterator[_Change]:
    layout, batch = winner.layout, winner.batch
    if layout.mesh.pp == 1:
        return
    for schedule in _SCHEDULES:
        if schedule != layout.schedule:
            stages = 1 if schedule in SINGLE_STAGE else 2
            changed = replace(layout, schedule=schedule, stages_a_rank=stages, layers_per_stage=None)
            yield schedule, SCHEDULE, replace(winner, layout=changed)
    if layout.stages_a_rank > 2:
        yield "2 stages a rank", LAYERS, replace(winner, layout=replace(layout, stages_a_rank=2, layers_per_stage=None))
    for size in (batch.microbatch // 2, batch.microbatch * 2):
        if size and batch.local % size == 0:
            changed_batch = Batch(local=batch.local, microbatch=size)
            yield f"microbatches of {size}", MICROBATCH, replace(winner, batch=changed_batch)


def _of_batch(winner: Point) -> Iterator[_Change]:
    is_pipeline, batch = winner.layout.mesh.pp > 1, winner.batch
    for size in (batch.local // 2, batch.local * 2):
        if size and (not is_pipeline or size % batch.microbatch == 0):
            changed = Batch(local=size, microbatch=batch.microbatch if is_pipeline else size)
            yield f"local batch of {size}", LOCAL_BATCH, replace(winner, batch=changed)
