"""Recipes of torchtitan 0.2 for Llama 3 and Qwen 3: their keys with their values, and what a run of each is.

What is the same in all of them stands once. Numbers of parameters are those that the models' authors published, or for
the debug models the sum of the weights that torchtitan's numbers give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.keys import nested
from engine.reading.toml_text import toml_value

_COMMON: Mapping[str, Any] = {
    "job.dump_folder": "./outputs",
    "profiling.save_traces_folder": "profile_trace",
    "profiling.profile_freq": 100,
    "metrics.save_tb_folder": "tb",
    "optimizer.name": "AdamW",
    "optimizer.eps": 1e-8,
    "training.max_norm": 1.0,
    "training.dataset": "c4",
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.context_parallel_degree": 1,
    "checkpoint.enable": False,
    "checkpoint.folder": "checkpoint",
    "checkpoint.interval": 500,
    "checkpoint.async_mode": "disabled",
    "compile.enable": False,
    "compile.components": ["model", "loss"],
    "quantize.linear.float8.enable_fsdp_float8_all_gather": False,
    "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp": False,
    "quantize.linear.float8.filter_fqns": ["output"],
}
_LLAMA: Mapping[str, Any] = _COMMON | {
    "profiling.enable_profiling": True,
    "metrics.log_freq": 10,
    "metrics.enable_tensorboard": True,
    "model.name": "llama3",
    "training.seq_len": 8192,
    "training.steps": 1000,
    "parallelism.pipeline_parallel_degree": 1,
    "lr_scheduler.warmup_steps": 200,
    "checkpoint.last_save_model_only": True,
    "checkpoint.export_dtype": "float32",
    "activation_checkpoint.mode": "full",
    "validation.enable": False,
    "validation.dataset": "c4_validation",
    "validation.freq": 500,
    "validation.steps": 1200,
}
_QWEN: Mapping[str, Any] = _COMMON | {
    "profiling.enable_profiling": False,
    "metrics.enable_tensorboard": False,
    "model.name": "qwen3",
    "training.seq_len": 4096,
    "parallelism.fsdp_reshard_after_forward": "default",
    "checkpoint.last_save_model_only": False,
    "checkpoint.export_dtype": "float16",
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "op",
}
_DEBUG: Mapping[str, Any] = {
    "job.print_config": False,
    "profiling.enable_profiling": False,
    "profiling.profile_freq": 10,
    "profiling.enable_memory_snapshot": False,
    "profiling.save_memory_snapshot_folder": "memory_snapshot",
    "metrics.log_freq": 1,
    "metrics.disable_color_printing": False,
    "metrics.enable_tensorboard": False,
    "metrics.enable_wandb": False,
    "model.hf_assets_path": "./tests/assets/tokenizer",
    "optimizer.lr": 8e-4,
    "lr_scheduler.warmup_steps": 2,
    "lr_scheduler.decay_ratio": 0.8,
    "lr_scheduler.decay_type": "linear",
    "lr_scheduler.min_lr_factor": 0.0,
    "training.local_batch_size": 8,
    "training.seq_len": 2048,
    "training.steps": 10,
    "training.dataset": "c4_test",
    "checkpoint.interval": 10,
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Keys of a recipe, the GPUs that its first line names, and what a run of it is on `gpus`."""

    keys: Mapping[str, Any]
    comment: str
    gpus: int
    mesh: Mapping[str, int]
    tokens_per_step: int
    parameters: int

    @property
    def text(self) -> str:
        """The recipe as a file."""
        return torchtitan_toml(self.keys, self.comment)


def torchtitan_toml(keys: Mapping[str, Any], comment: str = "") -> str:
    """Dotted keys as a TOML file with a comment in its first line."""
    lines = [f"# {comment}"] if comment else []
    waiting: list[tuple[str, dict[str, Any]]] = [("", nested(dict(keys)))]
    while waiting:
        name, table = waiting.pop(0)
        leaves = {key: value for key, value in table.items() if not isinstance(value, dict)}
        if name and leaves:
            lines.append(f"\n[{name}]")
        lines += [f"{key} = {toml_value(value)}" for key, value in leaves.items()]
        waiting += [(f"{name}.{key}".lstrip("."), value) for key, value in table.items() if isinstance(value, dict)]
    return "\n".join([*lines, ""])


def _mesh(dp_shard: int, tp: int = 1) -> Mapping[str, int]:
    return {"pp": 1, "dp_replicate": 1, "dp_shard": dp_shard, "cp": 1, "tp": tp}


RECIPES: Mapping[str, Recipe] = {
    "llama3_debugmodel": Recipe(
        keys=_LLAMA | _DEBUG | {"model.flavor": "debugmodel", "job.description": "debug"},
        comment="",
        gpus=8,
        mesh=_mesh(8),
        tokens_per_step=8 * 8 * 2048,
        parameters=6_163_712,
    ),
    "llama3_8b": Recipe(
        keys=_LLAMA
        | {
            "job.description": "8B",
            "model.flavor": "8B",
            "model.hf_assets_path": "./assets/hf/Llama-3.1-8B",
            "optimizer.lr": 3e-4,
            "training.local_batch_size": 1,
            "activation_checkpoint.mode": "selective",
            "activation_checkpoint.selective_ac_option": "op",
        },
        comment="NOTE: this toml config is a preset for 64 A100 GPUs.",
        gpus=64,
        mesh=_mesh(64),
        tokens_per_step=64 * 8192,
        parameters=8_030_261_248,
    ),
    "llama3_70b": Recipe(
        keys=_LLAMA
        | {
            "job.description": "70B",
            "model.flavor": "70B",
            "model.hf_assets_path": "./assets/hf/Llama-3.1-70B",
            "optimizer.lr": 1.5e-4,
            "training.local_batch_size": 8,
            "parallelism.tensor_parallel_degree": 8,
        },
        comment="NOTE: this toml config is a preset for 64 A100 GPUs.",
        gpus=64,
        mesh=_mesh(8, tp=8),
        tokens_per_step=8 * 8 * 8192,
        parameters=70_553_706_496,
    ),
    "llama3_405b": Recipe(
        keys=_LLAMA
        | {
            "job.description": "405B",
            "model.flavor": "405B",
            "model.hf_assets_path": "./assets/hf/Llama-3.1-405B",
            "model.converters": ["quantize.linear.float8"],
            "optimizer.lr": 8e-5,
            "lr_scheduler.warmup_steps": 600,
            "training.steps": 3000,
            "training.local_batch_size": 2,
            "parallelism.tensor_parallel_degree": 8,
            "parallelism.enable_async_tensor_parallel": True,
            "compile.enable": True,
            "quantize.linear.float8.enable_fsdp_float8_all_gather": True,
            "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp": True,
        },
        comment="NOTE: this toml config is a preset for 128 H100 GPUs.",
        gpus=128,
        mesh=_mesh(16, tp=8),
        tokens_per_step=16 * 2 * 8192,
        parameters=405_853_388_800,
    ),
    "qwen3_debugmodel": Recipe(
        keys=_QWEN | _DEBUG | {"model.flavor": "debugmodel", "job.description": "debug"},
        comment="",
        gpus=8,
        mesh=_mesh(8),
        tokens_per_step=8 * 8 * 2048,
        parameters=31_987_968,
    ),
    "qwen3_0.6b": Recipe(
        keys=_QWEN
        | {
            "job.description": "0.6B",
            "model.flavor": "0.6B",
            "model.hf_assets_path": "./assets/hf/Qwen3-0.6B",
            "metrics.log_freq": 1,
            "optimizer.lr": 3e-4,
            "lr_scheduler.warmup_steps": 2,
            "training.local_batch_size": 4,
            "training.steps": 10,
        },
        comment="",
        gpus=8,
        mesh=_mesh(8),
        tokens_per_step=8 * 4 * 4096,
        parameters=596_049_920,
    ),
    "qwen3_1.7b": Recipe(
        keys=_QWEN
        | {
            "job.description": "1.7B",
            "model.flavor": "1.7B",
            "model.hf_assets_path": "./assets/hf/Qwen3-1.7B",
            "metrics.log_freq": 10,
            "optimizer.lr": 8e-4,
            "lr_scheduler.warmup_steps": 20,
            "training.local_batch_size": 4,
            "training.steps": 100,
            "checkpoint.interval": 50,
        },
        comment="",
        gpus=8,
        mesh=_mesh(8),
        tokens_per_step=8 * 4 * 4096,
        parameters=1_720_574_976,
    ),
    "qwen3_32b": Recipe(
        keys=_QWEN
        | {
            "job.description": "32B",
            "model.flavor": "32B",
            "model.hf_assets_path": "./assets/hf/Qwen3-32B",
            "metrics.log_freq": 10,
            "optimizer.lr": 8e-4,
            "lr_scheduler.warmup_steps": 600,
            "training.local_batch_size": 2,
            "training.steps": 3000,
            "activation_checkpoint.mode": "full",
        },
        comment="NOTE: this toml config is a preset for 8 H100 GPUs (with 96GiB memory).",
        gpus=8,
        mesh=_mesh(8),
        tokens_per_step=8 * 2 * 4096,
        parameters=32_762_123_264,
    ),
}
