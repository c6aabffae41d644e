"""Every key of torchtitan 0.2 and what becomes of it; and older names, with their place in 0.2.

Knows keys only. Rows of one thing stand together: what is computed (rows_model), how it is laid out (rows_layout), and
what is around it (rows_run).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.reading.moved_keys import DROPPED
from titancli.importing.row import Row, dropped
from titancli.importing.rows_layout import LAYOUT_ROWS
from titancli.importing.rows_model import MODEL_ROWS
from titancli.importing.rows_run import RUN_ROWS

_NAMED = {row.key: row for row in (*MODEL_ROWS, *LAYOUT_ROWS, *RUN_ROWS)}
# Names of the time before 0.1 whose values change what is computed: nobody knows what to do with them.
_NOT_THESE = frozenset({"checkpoint.interval_type"})


@dataclass(frozen=True, slots=True)
class Older:
    """Where a key of 0.1 stands in 0.2, and its value there."""

    now: str
    value: Callable[[Any], Any] = lambda value: value


def _not(value: Any) -> Any:
    return not value if isinstance(value, bool) else value


def _fused(value: Any) -> Any:
    return ("fused" if value else "foreach") if isinstance(value, bool) else value


def _converts(value: Any) -> Any:
    return ["float8"] if value is True else []


_DEGREES = ("data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree")
_MORE = (
    "enable_async_tensor_parallel",
    "pipeline_parallel_degree",
    "pipeline_parallel_schedule",
    "pipeline_parallel_schedule_csv",
    "pipeline_parallel_split_points",
    "context_parallel_degree",
    "context_parallel_rotate_method",
    "enable_compiled_autograd",
)
_FLOAT8_KEYS = (
    "enable_fsdp_float8_all_gather",
    "precompute_float8_dynamic_scale_for_fsdp",
    "recipe_name",
    "filter_fqns",
    "emulate",
)

OLDER: Mapping[str, Older] = {
    "job.print_args": Older("job.print_config"),
    "optimizer.fused": Older("optimizer.implementation", _fused),
    "lr_scheduler.lr_min": Older("lr_scheduler.min_lr_factor"),
    "training.batch_size": Older("training.local_batch_size"),
    "training.warmup_steps": Older("lr_scheduler.warmup_steps"),
    "training.compile": Older("compile.enable"),
    "training.data_parallel_degree": Older("parallelism.data_parallel_shard_degree"),
    "training.enable_loss_parallel": Older("parallelism.disable_loss_parallel", _not),
    "metrics.enable_color_printing": Older("metrics.disable_color_printing", _not),
    "checkpoint.enable_checkpoint": Older("checkpoint.enable"),
    "checkpoint.model_weights_only": Older("checkpoint.last_save_model_only"),
    "checkpoint.last_save_model_weights_only": Older("checkpoint.last_save_model_only"),
    "checkpoint.initial_load_model_weights_only": Older("checkpoint.initial_load_model_only"),
    "activation_checkpoint.selective_layer_freq": Older("activation_checkpoint.selective_ac_option", str),
    "memory_estimation.enabled": Older("memory_estimation.enable"),
    "validation.enabled": Older("validation.enable"),
    "training.enable_fp8_linear": Older("model.converters", _converts),
    "training.fp8_linear": Older("model.converters", _converts),
    "float8.enable_float8_linear": Older("model.converters", _converts),
    **{f"training.{name}": Older(f"parallelism.{name}") for name in _DEGREES},
    **{f"experimental.{name}": Older(f"parallelism.{name}") for name in _MORE},
    **{f"float8.{name}": Older(f"quantize.linear.float8.{name}") for name in _FLOAT8_KEYS},
    **{f"quantize.dense.float8.{name}": Older(f"quantize.linear.float8.{name}") for name in _FLOAT8_KEYS},
    **{f"mx.{name}": Older(f"quantize.linear.mx.{name}") for name in ("recipe_name", "filter_fqns")},
    "mx.use_fp8_dim1_cast_triton_kernel": Older("quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", lambda _: "triton"),
    "mx.mxfp8_dim1_cast_kernel_choice": Older("quantize.linear.mx.mxfp8_dim1_cast_kernel_choice"),
}
"""Names of torchtitan 0.1 and of the months between, by the old name."""

ROWS: Mapping[str, Row] = _NAMED | {
    key: dropped(key, "any", None)
    for key in DROPPED
    if key not in _NAMED and key not in OLDER and key not in _NOT_THESE
}
"""By torchtitan's name; those that no 0.2 has are dropped. Keys of 0.2.0 to 0.2.2 do not contradict each other."""
