"""What the keys of the optimizer, the learning rate and the run's own names mean.

Knows the rate of every step, and the states that an optimizer keeps. Does not know loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from engine.config import Config
from engine.explain.answer import Cost, Derived, Figure
from engine.explain.known import Edit, Known
from engine.explain.row import NO_TIES, Row, against, free
from engine.explain.words import gib, many, size
from engine.keys import tokenizer_name
from engine.lr import asked_decay_steps, learning_rate, spans
from engine.planner.memory import OPTIMIZER_STATES
from engine.rules.ways import DTYPE

WARMUP, RATIO = "lr_scheduler.warmup_steps", "lr_scheduler.decay_ratio"
_NAME, _KERNEL, _NORM = "optimizer.name", "optimizer.implementation", "training.max_norm"


def rates(config: Config) -> tuple[tuple[int, float], ...]:
    """The learning rate at the first step, the last of the warmup, the middle one and the last."""
    last = config.training.steps
    told = {1, spans(config).warmup_steps or 1, max(1, last // 2), last}
    return tuple((step, learning_rate(config, step)) for step in sorted(told))


def _rates(known: Known) -> Iterable[Figure]:
    for step, rate in rates(known.config):
        yield Figure(
            f"rate of step {step:,}",
            float(f"{rate:.6g}"),
            f"{rate / (known.config.optimizer.lr or 1.0):.4g} of the peak",
        )


# ── learning rate ──


def _warmup(known: Known) -> Derived | None:
    asked, part = known.config.lr_scheduler.warmup_steps, spans(known.config)
    if part.warmup_steps == asked:
        return None
    return Derived(part.warmup_steps, f"cut from {asked} to the {many(known.config.training.steps, 'step')} of the run")


def _spans(known: Known) -> Iterable[Figure]:
    part, steps = spans(known.config), known.config.training.steps
    formula = f"{part.warmup_steps} warmup + {part.stable_steps} stable + {part.decay_steps} decay = {steps}"
    yield Figure("stable steps", part.stable_steps, formula)


def _ratio(known: Known) -> Derived | None:
    section, steps, part = known.config.lr_scheduler, known.config.training.steps, spans(known.config)
    share = round(part.decay_steps / steps, 4)
    if section.decay_ratio is None:
        return Derived(share, f"({steps} steps - {part.warmup_steps} warmup) / {steps} = {share:g}")
    asked = asked_decay_steps(known.config)
    if asked == part.decay_steps:
        return None
    return Derived(share, f"cut from {asked} to the {part.decay_steps} steps that warmup leaves")


def _decay_steps(known: Known) -> Iterable[Figure]:
    part, steps = spans(known.config), known.config.training.steps
    first = steps - part.decay_steps + 1
    formula = f"steps {first:,} to {steps:,}" if part.decay_steps else "none: the rate stays at its peak"
    yield Figure("decay steps", part.decay_steps, formula)


# ── optimizer and precision of what is kept ──


def _states_cost(known: Known) -> Cost:
    memory, time, name = known.plan.memory, known.plan.time, known.config.optimizer.name
    ms = None if time.optimizer_s is None else 1000 * time.optimizer_s
    count = OPTIMIZER_STATES[name]
    text = f"{name} keeps {count} states a weight" if count else f"{name} keeps no state"
    return Cost(memory.optimizer_bytes, ms, f"{text}: {size(memory.optimizer_bytes)} a rank, and the update")


def _states(known: Known) -> Iterable[Figure]:
    memory, count = known.plan.memory, OPTIMIZER_STATES[known.config.optimizer.name]
    formula = f"{count} x weights of {gib(memory.masters_bytes):g} GiB; there from the first update on"
    yield Figure("optimizer states of a rank, GiB", gib(memory.optimizer_bytes), formula)


def _static(known: Known) -> Iterable[Figure]:
    memory = known.plan.memory
    copies = f" + copies to compute with {gib(memory.copies_bytes):g}" if memory.copies_bytes else ""
    formula = (
        f"weights {gib(memory.masters_bytes):g}{copies} + gradients {gib(memory.grads_bytes):g} + optimizer states "
        f"{gib(memory.optimizer_bytes):g}; the states come with the first update"
    )
    yield Figure("held all the time by the fullest rank, GiB", gib(memory.static_bytes), formula)


def _kept_cost(known: Known) -> Cost:
    other = "bfloat16" if known.config.training.dtype == "float32" else "float32"
    return against(known, {DTYPE: other}, f"against {other}")


def _kept_edits(known: Known) -> Iterable[Edit]:
    return [{DTYPE: "bfloat16"}] if known.config.training.dtype == "float32" else []


def _kernel_cost(known: Known) -> Cost:
    other = "foreach" if known.config.optimizer.implementation == "fused" else "fused"
    return against(known, {_KERNEL: other}, f"against {other}")


def _kernel_edits(known: Known) -> Iterable[Edit]:
    return [] if known.config.optimizer.implementation == "fused" else [{_KERNEL: "fused"}]


def _norm_cost(known: Known) -> Cost:
    if not known.config.training.max_norm:
        return free("off: nothing")
    return against(known, {_NORM: 0.0}, "without clipping")


def _all_ranks(why: str, known: Known) -> str:
    world = known.plan.world_size
    return NO_TIES if world == 1 else f"all {world} ranks {why}"


# ── names and data ──


def _run_name(known: Known) -> Derived | None:
    if known.config.job.name:
        return None
    return Derived(f"{known.stem}-YYYYMMDD-HHMMSS", "the file or preset, then the time of the launch")


def _tokenizer(known: Known) -> Derived | None:
    if known.config.data.tokenizer is not None:
        return None
    there = known.config.model.hf_assets_path
    why = "that of model.hf_assets_path" if there else "neither data.tokenizer nor model.hf_assets_path is set"
    return Derived(tokenizer_name(known.config), why)


LEARNING_ROWS: dict[str, Row] = {
    "optimizer.lr": Row(figures=_rates),
    WARMUP: Row(derived=_warmup, figures=_spans),
    RATIO: Row(derived=_ratio, figures=_decay_steps),
    _NAME: Row(cost=_states_cost, figures=_states),
    _KERNEL: Row(cost=_kernel_cost, edits=_kernel_edits),
    _NORM: Row(cost=_norm_cost, ties=partial(_all_ranks, "sum one gradient norm and scale by it together")),
    DTYPE: Row(cost=_kept_cost, edits=_kept_edits, figures=_static),
    "debug.seed": Row(ties=partial(_all_ranks, "draw their weights and the order of the data from it")),
    "comm.init_timeout_seconds": Row(
        ties=partial(_all_ranks, "end where one stands still so long before the second step")
    ),
    "comm.train_timeout_seconds": Row(
        ties=partial(_all_ranks, "end where one stands still so long, beyond the time of a step")
    ),
    "comm.save_timeout_seconds": Row(ties=partial(_all_ranks, "end where one saves or loads so long without progress")),
    "job.name": Row(derived=_run_name),
    "data.tokenizer": Row(derived=_tokenizer),
}
