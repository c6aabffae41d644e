"""What switches and choices cost: recomputation, compile, low precision, resharding, what is fused or exchanged.

Knows each one's neighbour to compare it with. Does not know bytes or seconds of its own: both are planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from engine.explain.answer import Cost, Derived
from engine.explain.degrees import context_group, shard_group, tensor_group
from engine.explain.known import Edit, Known
from engine.explain.row import NO_TIES, Row, against, choice, free, switch
from engine.explain.words import many
from engine.features.parallelism import PARALLELISM
from engine.keys import value_of
from engine.planner.update import holds_whole
from engine.rules.ways import ASYNC_TP, RECOMPUTE, RESHARD

COMPILE, COMPONENTS = "compile.enable", "compile.components"
FLOAT8, FLOAT8_GATHER = "quantize.dense.float8.enable", "quantize.dense.float8.enable_fsdp_float8_all_gather"
FLOAT8_RECIPE = "quantize.dense.float8.recipe_name"
MX = "quantize.dense.mx.enable"
_METHOD, _BALANCE = "parallelism.context_parallel_method", "parallelism.context_parallel_load_balance"
_LOSS_PARALLEL = "parallelism.disable_loss_parallel"
_OPTION, _BUDGET = "activation_checkpoint.selective_ac_option", "activation_checkpoint.memory_budget"
_DTYPE = "training.dtype"


# ── recomputation ──


def _mode(known: Known) -> Derived | None:
    plan = known.plan
    if known.config.activation_checkpoint.mode != "auto":
        return None
    how = "the fastest that leaves room" if plan.time.step_s is not None else "the least that leaves room"
    return Derived(plan.recompute.mode, f"{how}, beside {many(plan.microbatch_size, 'sequence')} at once")


def _mode_cost(known: Known) -> Cost:
    if known.plan.recompute.mode == "none":
        return free("everything is kept: nothing is computed again")
    return against(known, {RECOMPUTE: "none"}, "against none")


def _mode_edits(known: Known) -> Iterable[Edit]:
    return [{RECOMPUTE: mode} for mode in ("none", "selective", "full") if mode != known.plan.recompute.mode]


def _option_edits(known: Known) -> Iterable[Edit]:
    return [{_OPTION: option} for option in ("op", 2) if option != known.base.activation_checkpoint.selective_ac_option]


def _option_cost(known: Known) -> Cost:
    option = known.base.activation_checkpoint.selective_ac_option
    other = 2 if option == "op" else "op"
    return against(known, {_OPTION: other}, f"against {other}")


def _budget_edits(known: Known) -> Iterable[Edit]:
    budget = known.config.activation_checkpoint.memory_budget
    return [{_BUDGET: value} for value in (0.25, 0.5, 0.75) if value != budget]


# ── compile ──


def _uncompiled(known: Known) -> Edit:
    """What goes with compile where it is switched off."""
    return {ASYNC_TP: False} if known.config.parallelism.enable_async_tensor_parallel else {}


def _components_cost(known: Known) -> Cost:
    components = known.config.compile.components
    if "loss" in components:
        return against(known, {COMPONENTS: tuple(part for part in components if part != "loss")}, "without the loss")
    return against(known, {COMPONENTS: (*components, "loss")}, "with the loss")


def _components_edits(known: Known) -> Iterable[Edit]:
    missing = tuple(part for part in ("model", "loss") if part not in known.config.compile.components)
    return [{COMPONENTS: (*known.config.compile.components, *missing)}] if missing else []


# ── low precision ──


def _gathered(known: Known) -> Edit:
    recipe = known.config.quantize.dense.float8.recipe_name
    return {FLOAT8_GATHER: True} if known.mesh.fsdp > 1 and recipe == "tensorwise" else {}


def _without_async_tp(known: Known) -> Edit:
    return {FLOAT8_GATHER: False} if known.config.quantize.dense.float8.enable_fsdp_float8_all_gather else {}


def _recipe_cost(known: Known) -> Cost:
    recipe = known.config.quantize.dense.float8.recipe_name
    other = "rowwise" if recipe == "tensorwise" else "tensorwise"
    gathers: Edit = {FLOAT8_GATHER: False} if other != "tensorwise" else {}
    return against(known, {FLOAT8_RECIPE: other} | gathers, f"against {other}")


def _filter_cost(key: str, known: Known) -> Cost:
    left_out = value_of(known.config, key)
    return against(
        known, {key: () if left_out else ("output",)}, f"against {'none' if left_out else 'the head'} left out"
    )


def _emulation(known: Known) -> Cost:
    section = known.config.quantize.dense
    emulates = section.float8.emulate if section.float8.enable else section.mx.emulate
    return free("products as fast as in bfloat16 at most: emulation has no speed" if emulates else "off: nothing")


def _mx_recipe(known: Known) -> Cost:
    recipe = known.config.quantize.dense.mx.recipe_name
    other = "mxfp8_emulated" if recipe == "mxfp8_cublas" else "mxfp8_cublas"
    return against(known, {"quantize.dense.mx.recipe_name": other}, f"against {other}")


def _narrower(key: str, known: Known) -> Iterable[Edit]:
    training = known.config.training
    value = getattr(training, key.rpartition(".")[2])
    return [{key: "bfloat16"}] if value == "float32" else []


def _summed(known: Known) -> str:
    mesh = known.mesh
    ranks = mesh.fsdp * mesh.dp_replicate
    if ranks == 1:
        return NO_TIES if mesh.tp == 1 else f"every rank sums gradients of norms with the {mesh.tp - 1} others of tp"
    return f"every rank sums its gradients with {ranks - 1} others (dp_replicate x dp_shard x cp)"


def _precision(key: str, ties: Callable[[Known], str] = lambda _: NO_TIES) -> Row:
    """A dtype: it costs what it differs from the other one."""

    def cost(known: Known) -> Cost:
        value = getattr(known.config.training, key.rpartition(".")[2])
        other = "bfloat16" if value == "float32" else "float32"
        return against(known, {key: other}, f"against {other}")

    return Row(ties=ties, cost=cost, edits=partial(_narrower, key))


# ── what is gathered, fused and exchanged ──


def _reshard(known: Known) -> Derived | None:
    if known.config.parallelism.fsdp_reshard_after_forward != "default" or holds_whole(known.mesh):
        return None
    if known.mesh.pp > 1:
        return Derived("never", f"pp {known.mesh.pp}: gathered weights serve all microbatches of a step")
    return Derived("always", "no pipeline: weights are freed after forward and gathered again in backward")


def _reshard_other(known: Known) -> str:
    asked = known.config.parallelism.fsdp_reshard_after_forward
    if holds_whole(known.mesh):
        return "never" if asked == "always" else "always"
    never = asked == "never" or (asked == "default" and known.mesh.pp > 1)
    return "always" if never else "never"


def _reshard_cost(known: Known) -> Cost:
    other = _reshard_other(known)
    return against(known, {RESHARD: other}, f"against {other}")


def _balance(known: Known) -> Derived | None:
    if known.config.parallelism.context_parallel_load_balance != "auto":
        return None
    if known.mesh.cp == 1:
        return Derived("none", "cp 1: no sequence is cut")
    if known.facts.balances:
        return Derived("headtail", f"each of {known.mesh.cp} ranks gets an early and a late piece")
    idle = next(feature for feature in PARALLELISM if feature.key == _BALANCE).idle(known.facts)
    return Derived("none", idle or "")


def _balance_cost(known: Known) -> Cost:
    other = "none" if known.facts.balances else "headtail"
    return against(known, {_BALANCE: other}, f"against {other}")


SWITCH_ROWS: dict[str, Row] = {
    RECOMPUTE: Row(derived=_mode, cost=_mode_cost, edits=_mode_edits),
    _OPTION: Row(cost=_option_cost, edits=_option_edits),
    _BUDGET: Row(
        cost=lambda known: against(known, {RECOMPUTE: "none"}, "against keeping everything"), edits=_budget_edits
    ),
    COMPILE: switch(COMPILE, off=_uncompiled),
    COMPONENTS: Row(cost=_components_cost, edits=_components_edits),
    FLOAT8: switch(FLOAT8, on=_gathered, off=_without_async_tp),
    FLOAT8_GATHER: replace(switch(FLOAT8_GATHER), ties=shard_group),
    FLOAT8_RECIPE: Row(cost=_recipe_cost),
    "quantize.dense.float8.filter_fqns": Row(cost=partial(_filter_cost, "quantize.dense.float8.filter_fqns")),
    "quantize.dense.float8.emulate": Row(cost=_emulation),
    MX: switch(MX),
    "quantize.dense.mx.recipe_name": Row(cost=_mx_recipe),
    "quantize.dense.mx.filter_fqns": Row(cost=partial(_filter_cost, "quantize.dense.mx.filter_fqns")),
    "quantize.dense.mx.emulate": Row(cost=_emulation),
    "training.mixed_precision_param": _precision("training.mixed_precision_param"),
    "training.mixed_precision_reduce": _precision("training.mixed_precision_reduce", _summed),
    RESHARD: Row(
        derived=_reshard, ties=shard_group, cost=_reshard_cost, edits=lambda known: [{RESHARD: _reshard_other(known)}]
    ),
    ASYNC_TP: replace(switch(ASYNC_TP), ties=tensor_group),
    _LOSS_PARALLEL: replace(switch(_LOSS_PARALLEL), ties=tensor_group),
    _METHOD: replace(choice(_METHOD, "allgather", "ring", "ulysses"), ties=context_group),
    _BALANCE: Row(derived=_balance, ties=context_group, cost=_balance_cost),
}
