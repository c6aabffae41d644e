"""Keys of torchtitan that say how the work is laid out: degrees, pipeline, recomputation, compilation.

Knows their defaults in torchtitan 0.2.0 to 0.2.2, and how many stages torchtitan makes. Does not know how titan
deals layers to them (engine/planner/schedule).
"""

from __future__ import annotations

from typing import get_args

from engine.config import Model, ScheduleName
from engine.planner.schedule import SINGLE_STAGE
from engine.shapes import shape_of
from titancli.importing.models import FLAVOR, MODELS, NAME
from titancli.importing.row import (
    Became,
    Given,
    Gone,
    Outcome,
    Refused,
    Row,
    dropped,
    on,
    piped,
    refused,
    same,
    turned,
)

_P = "parallelism."
REPLICATE, SHARD = f"{_P}data_parallel_replicate_degree", f"{_P}data_parallel_shard_degree"
TENSOR, PIPELINE, CONTEXT = (f"{_P}{name}_parallel_degree" for name in ("tensor", "pipeline", "context"))
_SCHEDULE, _LAYERS = f"{_P}pipeline_parallel_schedule", f"{_P}pipeline_parallel_layers_per_stage"
_PARTS, _SPLITS = f"{_P}module_fqns_per_model_part", f"{_P}pipeline_parallel_split_points"
_FIRST, _LAST = (f"{_P}pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
_METHOD, _ROTATE = f"{_P}context_parallel_method", f"{_P}context_parallel_rotate_method"
_BALANCER, _BALANCE = f"{_P}context_parallel_load_balancer", f"{_P}context_parallel_load_balance"
_MODE, _OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
_METHODS = {"allgather": "allgather", "alltoall": "ring"}
_SCHEDULES = {name.lower(): name for name in get_args(ScheduleName)}
_NO_PIPELINE = "there is no pipeline"
_BY_WORK = "titan deals layers to stages by their work, the head's included"
_OP_NOTE = "titan keeps every product; torchtitan computes every second one again: the same numbers, more memory"


def _schedule(given: Given) -> Outcome:
    name = _SCHEDULES.get(str(given[_SCHEDULE]).lower())
    if name is not None:
        return Became({_SCHEDULE: name})
    if not piped(given):
        return Gone(_NO_PIPELINE)
    return Refused(f"titan has no schedule {given[_SCHEDULE]}", f"write one of {', '.join(_SCHEDULES.values())}")


def _n_layers(given: Given) -> int | None:
    found = MODELS.get(given[NAME], {}).get(given[FLAVOR])
    if found is None:
        return None
    return shape_of(Model.model_validate({"name": given[NAME], "flavor": found.name, "shape": found.shape})).n_layers


def _by_layers(given: Given) -> Outcome:
    """Layers of a stage: torchtitan counts embedding and head as layers (`less_layers`) when it divides them."""
    each, layers = given[_LAYERS], _n_layers(given)
    if each is None or layers is None:
        return Gone(_BY_WORK)
    if not piped(given) or each < 1:
        return Became({_LAYERS: each})
    if given[_PARTS] is not None:
        return Gone(f"{_PARTS} goes before it in torchtitan")
    return _stages(given, -(-(layers + given[_FIRST] + given[_LAST]) // each))


def _by_parts(given: Given) -> Outcome:
    """Parts that somebody has cut by hand: as many stages, with layers dealt by titan."""
    parts = given[_PARTS]
    if parts is None or not piped(given):
        return Gone(_NO_PIPELINE)
    return _stages(given, len(parts))


def _by_split_points(given: Given) -> Outcome:
    points = given[_SPLITS]
    if not points or not piped(given):
        return Gone(_BY_WORK)
    return _stages(given, len(points) + 1)


def _stages(given: Given, stages: int) -> Outcome:
    """The titan key that makes as many stages; nothing where titan makes as many by itself."""
    layers, pp = _n_layers(given), given[PIPELINE]
    usual = pp if _SCHEDULES.get(str(given[_SCHEDULE]).lower()) in SINGLE_STAGE else 2 * pp
    if layers is None or stages == usual:
        return Gone(f"titan makes {stages} stages by itself; {_BY_WORK}")
    most = -(-layers // stages)
    leave = f"leave it out: titan makes {usual} stages by itself"
    if stages % pp:
        return Refused(f"it makes {stages} stages, which {pp} ranks cannot share: torchtitan refuses it too", leave)
    if -(-layers // most) != stages:
        return Refused(f"titan makes no {stages} stages of {layers} layers", leave)
    return Became({_LAYERS: most}, f"{stages} stages, as in torchtitan; {_BY_WORK}")


def _balance(given: Given) -> Outcome:
    name = given[_BALANCER]
    if name == "headtail":
        return Became({_BALANCE: "headtail"})
    if given[CONTEXT] == 1:
        return Gone("there is no context parallel")
    return Refused(f"titan has no load balance {name}", 'write "headtail"')


def _mode(given: Given) -> Outcome:
    note = _OP_NOTE if given[_MODE] == "selective" and str(given[_OPTION]) == "op" else ""
    return Became({_MODE: given[_MODE]}, note)


def _option(given: Given) -> Outcome:
    option = str(given[_OPTION])
    if option == "op":
        return Became({_OPTION: "op"})
    if not option.isdecimal():
        return Refused(f"{option} is neither op nor a number", 'write "op", or every how many layers one is recomputed')
    if int(option) == 0:
        return Became({_OPTION: 1}, "was 0, which means every layer")
    return Became({_OPTION: int(option)})


_NO_CSV = "titan takes no schedule from a file"
_ONE_BACKEND = "titan compiles with TorchInductor"
_EVERY = ("none", "selective", "full", "memory_budget")

LAYOUT_ROWS: tuple[Row, ...] = (
    same(REPLICATE, "whole", 1),
    dropped(f"{_P}enable_compiled_autograd", "boolean", False),
    same(SHARD, "whole", -1),
    same(f"{_P}fsdp_reshard_after_forward", "text", "default", choices=("default", "always", "never")),
    same(TENSOR, "whole", 1),
    same(f"{_P}disable_loss_parallel", "boolean", False),
    same(f"{_P}enable_async_tensor_parallel", "boolean", False),
    same(PIPELINE, "whole", 1),
    turned(_PARTS, "lists", None, _by_parts, to=(_LAYERS,)),
    turned(_SPLITS, "texts", [], _by_split_points, to=(_LAYERS,)),
    dropped(_FIRST, "whole", 1, reason=_BY_WORK),
    dropped(_LAST, "whole", 1, reason=_BY_WORK),
    turned(_LAYERS, "whole", None, _by_layers, to=(_LAYERS,)),
    turned(_SCHEDULE, "text", "1F1B", _schedule, to=(_SCHEDULE,)),
    refused(
        f"{_P}pipeline_parallel_schedule_csv",
        "text",
        "",
        _NO_CSV,
        "choose parallelism.pipeline_parallel_schedule",
        matters=piped,
        off=_NO_PIPELINE,
    ),
    same(f"{_P}pipeline_parallel_microbatch_size", "whole", 1),
    dropped(f"{_P}pipeline_parallel_expert_parallel_overlap", "boolean", True),
    same(CONTEXT, "whole", 1),
    turned(_BALANCER, "text", "headtail", _balance, to=(_BALANCE,), matters=lambda given: given[CONTEXT] > 1),
    turned(
        _ROTATE,
        "text",
        "allgather",
        lambda given: Became({_METHOD: _METHODS[given[_ROTATE]]}),
        to=(_METHOD,),
        choices=tuple(_METHODS),
    ),
    dropped(f"{_P}expert_parallel_degree", "whole", 1),
    dropped(f"{_P}expert_tensor_parallel_degree", "whole", 1),
    dropped(f"{_P}expert_parallel_comm_backend", "text", "standard"),
    turned(_MODE, "text", "selective", _mode, to=(_MODE,), choices=_EVERY),
    turned(
        _OPTION,
        "word",
        "2",
        _option,
        to=(_OPTION,),
        matters=lambda given: given[_MODE] == "selective",
    ),
    dropped(
        "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
        "texts",
        ["moe.router.gate"],
        reason="titan keeps the result of every product",
    ),
    dropped("activation_checkpoint.early_stop", "boolean", False),
    same("activation_checkpoint.memory_budget", "number", 0.5),
    dropped("activation_checkpoint.visualize_memory_budget_pareto", "boolean", False),
    dropped("activation_checkpoint.preserve_rng_state", "boolean", True, reason="nothing in a block draws at random"),
    dropped("activation_checkpoint.determinism_check", "text", "default"),
    dropped("activation_checkpoint.debug", "boolean", False),
    same("compile.enable", "boolean", False),
    same("compile.components", "texts", ["model", "loss"]),
    refused(
        "compile.backend",
        "text",
        "inductor",
        _ONE_BACKEND,
        'write "inductor"',
        matters=on("compile.enable"),
        off=_ONE_BACKEND,
    ),
)
"""[parallelism], [activation_checkpoint] and [compile], in torchtitan's order."""
