"""What batch, sequence length and schedule mean: what is at once in memory, what accumulates, how long ranks wait.

Knows them of the plan and its neighbours. Does not choose a batch (planner/batch).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from engine.config import ScheduleName
from engine.explain.answer import Cost, Derived, Figure
from engine.explain.degrees import pipeline_group
from engine.explain.known import Edit, Known, step_ms
from engine.explain.row import NO_TIES, Row, against, free
from engine.explain.words import duration, gib, many, size
from engine.legal import near_divisors
from engine.planner.held import room_of
from engine.planner.schedule import V_SHAPED
from engine.rules.pipeline import LAYERS, LOCAL_BATCH, MICROBATCH, SCHEDULE
from engine.rules.training import GLOBAL_BATCH
from engine.rules.ways import CHUNKS
from engine.shapes import flops_per_token

SEQ_LEN, STEPS = "training.seq_len", "training.steps"
_CHUNKS = (1, 2, 4, 8)


# ── the batch ──


def _local(known: Known) -> Derived | None:
    if known.config.training.local_batch_size != "auto":
        return None
    plan, free_pct = known.plan, 100 * (1 - room_of(known.plan.gpu))
    how = "the fastest of those that leave" if plan.time.step_s is not None else "chosen among those that leave"
    memory = f"{size(plan.memory.needed_bytes)} of {size(plan.memory.capacity_bytes)}"
    return Derived(plan.local_batch_size, f"{how} {free_pct:.0f} % free: {memory} are needed")


def _local_figures(known: Known) -> Iterable[Figure]:
    plan = known.plan
    formula = f"local_batch_size {plan.local_batch_size} / microbatch {plan.microbatch_size} = {plan.microbatches}"
    yield Figure("microbatches", plan.microbatches, formula)


def _activations_bytes(known: Known) -> int | None:
    memory = known.plan.memory
    if memory.activations_bytes is None:
        return None
    return memory.activations_bytes + (memory.logits_bytes or 0)


def _local_cost(known: Known) -> Cost:
    plan, held = known.plan, _activations_bytes(known)
    if plan.mesh.pp > 1:
        if plan.local_batch_size % (2 * plan.microbatch_size):
            return free(f"{many(plan.microbatches, 'microbatch', 'microbatches')} of one accumulation step")
        half = plan.local_batch_size // 2
        words = f"against {half} and twice the accumulation"
        return against(known, {LOCAL_BATCH: half, GLOBAL_BATCH: plan.global_batch_size}, words)
    text = "activations and logits at their most" + (f": {size(held)}" if held is not None else " are not known")
    if plan.local_batch_size % 2:
        return Cost(held, step_ms(plan), f"{text}; the whole step is spent on it")
    half = plan.local_batch_size // 2
    other = against(known, {LOCAL_BATCH: half, GLOBAL_BATCH: plan.global_batch_size}, f"against {half}, twice as often")
    return Cost(held, other.ms, f"{text}; {other.text}")


def _local_edits(known: Known) -> Iterable[Edit]:
    plan, ranks = known.plan, known.mesh.data_ranks
    for local in (plan.local_batch_size // 2, 2 * plan.local_batch_size):
        if local and plan.global_batch_size % (local * ranks) == 0:
            yield {LOCAL_BATCH: local, GLOBAL_BATCH: plan.global_batch_size}


def _global(known: Known) -> Derived | None:
    plan, ranks = known.plan, known.mesh.data_ranks
    if known.config.training.global_batch_size != -1:
        return None
    formula = f"local_batch_size {plan.local_batch_size} x {many(ranks, 'data rank')} = {plan.global_batch_size}"
    return Derived(plan.global_batch_size, formula)


def _global_figures(known: Known) -> Iterable[Figure]:
    plan, ranks = known.plan, known.mesh.data_ranks
    steps = plan.gradient_accumulation_steps
    at_once = f"(local_batch_size {plan.local_batch_size} x {many(ranks, 'data rank')})"
    yield Figure("gradient accumulation steps", steps, f"{plan.global_batch_size} / {at_once} = {steps}")
    yield _tokens_per_step(known)


def _tokens_per_step(known: Known) -> Figure:
    plan, seq_len = known.plan, known.config.training.seq_len
    formula = f"global_batch_size {plan.global_batch_size:,} x seq_len {seq_len:,} = {plan.tokens_per_step:,}"
    return Figure("tokens per step", plan.tokens_per_step, formula)


def _global_cost(known: Known) -> Cost:
    plan = known.plan
    if plan.gradient_accumulation_steps == 1:
        return free("one accumulation step: nothing beside local_batch_size")
    whole = plan.local_batch_size * known.mesh.data_ranks
    return against(known, {GLOBAL_BATCH: whole}, f"against {whole}, one accumulation step")


def _all_wait(known: Known) -> str:
    world = known.plan.world_size
    return NO_TIES if world == 1 else f"all {world} ranks take each step together"


def _same_batch(known: Known) -> str:
    alike = known.plan.world_size // known.mesh.data_ranks
    return NO_TIES if alike == 1 else f"{alike} ranks read the same sequences (pp x cp x tp)"


# ── the sequence ──


def _sequence_figures(known: Known) -> Iterable[Figure]:
    plan, seq_len, shape = known.plan, known.config.training.seq_len, known.plan.model
    yield _tokens_per_step(known)
    speed, step_s = plan.tokens_per_s_per_gpu, plan.time.step_s
    if speed is not None and step_s is not None:
        formula = f"{plan.tokens_per_step:,} / {step_s:.4g} s / {many(plan.world_size, 'GPU')}"
        yield Figure("tokens per second of a GPU", round(speed, 2), formula)
    whole, linear = flops_per_token(shape, seq_len), flops_per_token(shape, 0)
    share = 100 * (whole - linear) / whole
    formula = f"({whole:,} - {linear:,}) / {whole:,} FLOPs of a token"
    yield Figure("attention's share of the FLOPs, %", round(share, 1), formula)


def _sequence_cost(known: Known) -> Cost:
    plan, held, seq_len = known.plan, _activations_bytes(known), known.config.training.seq_len
    text = "activations and logits of its tokens at their most" + ("" if held is None else f": {size(held)}")
    if seq_len % 2:
        return Cost(held, None, text)
    batch: Edit = {LOCAL_BATCH: 2 * plan.local_batch_size, GLOBAL_BATCH: 2 * plan.global_batch_size}
    if known.mesh.pp > 1:
        batch |= {MICROBATCH: 2 * plan.microbatch_size}
    twice = against(known, {SEQ_LEN: seq_len // 2} | batch, f"against {seq_len // 2} and twice the sequences")
    return Cost(held, twice.ms, f"{text}; {twice.text}")


def _one_sequence(known: Known) -> str:
    cp = known.mesh.cp
    return NO_TIES if cp == 1 else f"{cp} context ranks hold one sequence together"


# ── head and loss ──


def logits_figure(known: Known) -> Figure:
    """Float32 logits of a microbatch on a rank that computes the loss, were they there at once."""
    plan, parallelism = known.plan, known.config.parallelism
    tokens = plan.microbatch_size * known.config.training.seq_len // plan.mesh.cp
    pieces = 1 if parallelism.disable_loss_parallel else plan.mesh.tp
    vocabulary = plan.model.vocab_size
    whole_bytes = 4 * tokens * -(-vocabulary // pieces)
    split = f" / tp {pieces}" if pieces > 1 else ""
    formula = (
        f"{tokens:,} tokens x {vocabulary:,} entries x 4 bytes{split}; half of it in bfloat16; on the rank of the head"
        " only"
    )
    return Figure("float32 logits of a microbatch, GiB", gib(whole_bytes), formula)


def _chunks_cost(known: Known) -> Cost:
    if known.config.training.loss_chunks == 1:
        held = max((stage.memory.logits_bytes or 0 for stage in known.plan.stages), default=0)
        return free("whole logits" + (f": at most {size(held)} on the rank of the head" if held else ""))
    return against(known, {CHUNKS: 1}, "against 1, whole logits")


def _chunks_edits(known: Known) -> Iterable[Edit]:
    return [{CHUNKS: pieces} for pieces in _CHUNKS if pieces != known.config.training.loss_chunks]


# ── the pipeline's work ──


def _schedule_figures(known: Known) -> Iterable[Figure]:
    time = known.plan.time
    if known.mesh.pp > 1 and time.bubble_s is not None and time.step_s:
        share = 100 * time.bubble_s / time.step_s
        yield Figure("bubble, % of a step", round(share, 1), f"{time.bubble_s:.4g} s of {time.step_s:.4g} s")


def _schedule_cost(known: Known) -> Cost:
    usual = known.config.parallelism.pipeline_parallel_schedule == "1F1B"
    other = "GPipe" if usual else "1F1B"
    layers: Edit = {} if known.config.parallelism.pipeline_parallel_layers_per_stage is None else {LAYERS: None}
    return against(known, {SCHEDULE: other} | layers, f"against {other}")


def _schedule_edits(known: Known) -> Iterable[Edit]:
    p = known.config.parallelism
    layers: Edit = {} if p.pipeline_parallel_layers_per_stage is None else {LAYERS: None}
    if known.mesh.pp > 1:
        for schedule in get_args(ScheduleName):
            if schedule != p.pipeline_parallel_schedule:
                yield {SCHEDULE: schedule} | layers


def _microbatch_cost(known: Known) -> Cost:
    plan = known.plan
    if plan.microbatch_size > 1:
        return against(known, {MICROBATCH: 1}, "against 1")
    held = plan.memory.activations_bytes
    return free("one sequence" + ("" if held is None else f"; the fullest rank keeps {size(held)} of activations"))


def _microbatch_edits(known: Known) -> Iterable[Edit]:
    if known.mesh.pp > 1:
        below, above = _around(known.plan.local_batch_size, known.plan.microbatch_size)
        yield from ({MICROBATCH: value} for value in (*below, *above))


def _around(number: int, value: int) -> tuple[list[int], list[int]]:
    """The divisors next below and next above one of them."""
    below = [divisor for divisor in near_divisors(number, value - 1) if divisor < value] if value > 1 else []
    return below, [divisor for divisor in near_divisors(number, value) if divisor > value]


def _layers(known: Known) -> Derived | None:
    plan = known.plan
    if known.config.parallelism.pipeline_parallel_layers_per_stage is not None:
        return None
    if plan.mesh.pp == 1:
        return Derived(plan.model.n_layers, f"no pipeline: one stage of all {plan.model.n_layers} layers")
    by_stage = dict(part for stage in plan.stages for part in stage.parts)
    counts = [len(by_stage[index]) for index in sorted(by_stage)]
    turn = "one down, one back, of" if known.config.parallelism.pipeline_parallel_schedule in V_SHAPED else "of"
    each = f"{plan.mesh.pp} ranks x {plan.stage_count // plan.mesh.pp} {turn} {', '.join(map(str, counts))} layers"
    return Derived(max(counts), f"{each}, the head counting as the blocks that weigh as much")


def _layers_cost(known: Known) -> Cost:
    if known.config.parallelism.pipeline_parallel_layers_per_stage is None:
        return free("as even as the work allows")
    return against(known, {LAYERS: None}, "against leaving it out")


def _layers_edits(known: Known) -> Iterable[Edit]:
    if known.mesh.pp > 1:
        each = known.plan.stage_count // known.mesh.pp
        for stages in (each // 2, 2 * each):
            if stages:
                yield {LAYERS: -(-known.plan.model.n_layers // (stages * known.mesh.pp))}


def _run_figures(known: Known) -> Iterable[Figure]:
    plan, steps = known.plan, known.config.training.steps
    formula = f"{steps:,} steps x {plan.tokens_per_step:,} tokens"
    yield Figure("tokens of the run", steps * plan.tokens_per_step, formula)
    if plan.time.step_s is not None:
        whole_s = steps * plan.time.step_s
        formula = f"{steps:,} steps x {duration(1000 * plan.time.step_s)}, without saving, loading and starting"
        yield Figure("hours of the run", round(whole_s / 3600, 2), formula)


BATCH_ROWS: dict[str, Row] = {
    LOCAL_BATCH: Row(derived=_local, figures=_local_figures, ties=_same_batch, cost=_local_cost, edits=_local_edits),
    GLOBAL_BATCH: Row(derived=_global, figures=_global_figures, ties=_all_wait, cost=_global_cost),
    SEQ_LEN: Row(figures=_sequence_figures, ties=_one_sequence, cost=_sequence_cost),
    CHUNKS: Row(figures=lambda known: (logits_figure(known),), cost=_chunks_cost, edits=_chunks_edits),
    STEPS: Row(figures=_run_figures, ties=_all_wait),
    SCHEDULE: Row(ties=pipeline_group, figures=_schedule_figures, cost=_schedule_cost, edits=_schedule_edits),
    MICROBATCH: Row(ties=pipeline_group, cost=_microbatch_cost, edits=_microbatch_edits),
    LAYERS: Row(derived=_layers, cost=_layers_cost, edits=_layers_edits),
}
