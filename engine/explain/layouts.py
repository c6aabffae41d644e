"""Neighbours of a layout: one axis twice or half as wide, on the same hardware and for the same global batch.

Knows which axis gives or takes the ranks, and which batches then make the same step. Does not judge them.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.explain.known import Edit, Known
from engine.rules.degrees import CP, PP, REPLICATE, SHARD, TP
from engine.rules.pipeline import LOCAL_BATCH, MICROBATCH
from engine.rules.training import GLOBAL_BATCH

AXES = {PP: "pp", REPLICATE: "dp_replicate", SHARD: "dp_shard", CP: "cp", TP: "tp"}
"""Keys of the degrees and their axes, outermost first."""


def neighbours(known: Known, key: str) -> Iterator[Edit]:
    """Layouts with the axis of `key` doubled and halved: shards give and take the ranks, replicas those of shards."""
    mesh = known.mesh
    degree, partner = getattr(mesh, AXES[key]), SHARD if key != SHARD else REPLICATE
    ranks = getattr(mesh, AXES[partner])
    if ranks % 2 == 0:
        yield from _with_batch(known, {key: 2 * degree, partner: ranks // 2})
    if degree % 2 == 0:
        yield from _with_batch(known, {key: degree // 2, partner: 2 * ranks})


def alone(known: Known, key: str) -> Edit:
    """The layout without the axis of `key`, on as many fewer ranks, where each computes the same microbatch."""
    plan, mesh = known.plan, known.mesh
    edit: Edit = {SHARD: mesh.dp_shard, key: 1}
    whole = plan.global_batch_size
    if key in (SHARD, REPLICATE):
        whole //= getattr(mesh, AXES[key])
    if key == PP:
        edit[LOCAL_BATCH] = plan.microbatch_size
    return edit | {GLOBAL_BATCH: whole}


def _with_batch(known: Known, edit: Edit) -> Iterator[Edit]:
    """The edit with each batch that makes the same step: other sequences at once, or more accumulation."""
    plan, mesh = known.plan, known.mesh
    ranks = edit.get(REPLICATE, mesh.dp_replicate) * edit.get(SHARD, mesh.dp_shard)
    edit = _short(known, edit)
    was_piped, is_piped = mesh.pp > 1, edit.get(PP, mesh.pp) > 1
    if was_piped and not is_piped:
        yield edit | {LOCAL_BATCH: plan.microbatch_size, GLOBAL_BATCH: plan.global_batch_size}
    elif is_piped and not was_piped:
        if plan.global_batch_size % ranks == 0:
            yield (
                edit | {LOCAL_BATCH: plan.global_batch_size // ranks, MICROBATCH: plan.local_batch_size} | _whole(known)
            )
    elif ranks == mesh.data_ranks:
        yield edit
    else:
        at_once = ranks * plan.gradient_accumulation_steps
        if plan.global_batch_size % at_once == 0:
            yield edit | {LOCAL_BATCH: plan.global_batch_size // at_once} | _whole(known)
        yield edit | {GLOBAL_BATCH: plan.global_batch_size}


def _whole(known: Known) -> Edit:
    """The global batch, where the config leaves it to follow and accumulation would change it."""
    training = known.config.training
    follows = training.global_batch_size == -1 and known.plan.gradient_accumulation_steps == 1
    return {} if follows or training.global_batch_size != -1 else {GLOBAL_BATCH: known.plan.global_batch_size}


def _short(known: Known, edit: Edit) -> Edit:
    """Without the degree of shards where the config leaves it to be the rest."""
    rest = known.config.parallelism.data_parallel_shard_degree == -1
    return {key: value for key, value in edit.items() if not (rest and key == SHARD)}
