"""What a dry run counts, tensor by tensor, is what the plan says of every stage, without the compiler in both.

Presets have their layout and widths, and fewer layers; whole ones are compared by tests/bench/bench_memory.py.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, TypeAlias

import pytest
from fresh import fresh

from engine.config import Config
from engine.dryrun import dry_run
from engine.keys import with_values
from engine.planner.plan import plan

P, AC, LOW = "parallelism.", "activation_checkpoint.mode", "quantize.dense.float8."
# The compiler is what async tensor parallel needs; a dry run has none.
EAGER = {"compile.enable": False, P + "enable_async_tensor_parallel": False}
PRESETS: dict[str, dict[str, Any]] = {
    "quickstart": {},
    "fsdp-8b": {"model.shape.n_layers": 4},
    "2d-70b": {"model.shape.n_layers": 4},
    "3d-405b": {
        "model.shape.n_layers": 4,
        P + "pipeline_parallel_degree": 2,
        "cluster.nodes": 16,
        "training.local_batch_size": 16,
    },
    "4d-405b-long": {
        "model.shape.n_layers": 4,
        P + "pipeline_parallel_degree": 2,
        "cluster.nodes": 16,
        "training.local_batch_size": 3,
    },
}

PIECES = {"training.loss_chunks": 8}
PIPELINE = {P + "pipeline_parallel_degree": 2, "cluster.gpus_per_node": 4, "training.local_batch_size": 4}
# So few tokens that weights and gradients are nearly all there is.
SMALL = {"training.seq_len": 512, AC: "full", "cluster.gpus_per_node": 2}
COPIES = {"cluster.gpus_per_node": 4, P + "data_parallel_replicate_degree": 2}
# Ranks that share their weights with no other: one GPU, tensor ranks, pipeline ranks.
ONE, TENSOR = {"cluster.gpus_per_node": 1}, {"cluster.gpus_per_node": 2, P + "tensor_parallel_degree": 2}
STAGES = {**PIPELINE, "cluster.gpus_per_node": 2}
FOUR_STEPS, SIXTEEN_BITS = {"training.global_batch_size": 4}, {"training.dtype": "bfloat16"}
EACH_USE = {P + "fsdp_reshard_after_forward": "always"}
SCHEDULE = P + "pipeline_parallel_schedule"
# A backward in two parts computes nothing again.
KEEPS = {AC: "none"}
# Over an 8B model of four layers at 4,096 tokens on eight GPUs.
LAYOUTS: dict[str, dict[str, Any]] = {
    "every second layer, in float32": {
        AC: "selective",
        "activation_checkpoint.selective_ac_option": 2,
        "training.mixed_precision_param": "float32",
    },
    "copies that accumulate": {
        P + "data_parallel_replicate_degree": 8,
        AC: "full",
        "training.global_batch_size": 16,
        **PIECES,
    },
    "tensor ranks with a loss in pieces": {P + "tensor_parallel_degree": 4, "training.local_batch_size": 2, **PIECES},
    "rowwise float8": {LOW + "enable": True, LOW + "recipe_name": "rowwise", AC: "full", **PIECES},
    "ulysses": {
        P + "context_parallel_degree": 4,
        P + "context_parallel_method": "ulysses",
        "training.seq_len": 16384,
        AC: "full",
        **PIECES,
    },
    "tied weights": {"model.flavor": "1B", AC: "full", **PIECES},
    "weights in 16 bits": {**SMALL, "training.dtype": "bfloat16"},
    "sums in 16 bits": {**SMALL, "training.mixed_precision_reduce": "bfloat16"},
    "copies of weights in 16 bits": {**SMALL, **COPIES, "training.dtype": "bfloat16"},
    "copies of weights in 16 bits that accumulate": {
        **SMALL,
        **COPIES,
        "training.dtype": "bfloat16",
        "training.global_batch_size": 8,
    },
    "copies that sum in 16 bits": {**SMALL, **COPIES, "training.mixed_precision_reduce": "bfloat16"},
    "weights that stay gathered": {**SMALL, P + "fsdp_reshard_after_forward": "never"},
    "weights that stay gathered, and a loss in pieces": {
        **PIECES,
        AC: "selective",
        "training.local_batch_size": 4,
        P + "fsdp_reshard_after_forward": "never",
    },
    "a pipeline of eight shards": {**PIPELINE, "cluster.gpus_per_node": 8, "cluster.nodes": 2, AC: "full"},
    "a pipeline of copies": {**PIPELINE, AC: "full", P + "data_parallel_replicate_degree": 2},
    "a pipeline that frees weights": {
        **PIPELINE,
        "cluster.gpus_per_node": 8,
        AC: "full",
        P + "fsdp_reshard_after_forward": "always",
    },
    "an update weight by weight": {**SMALL, "optimizer.implementation": "for-loop"},
    "tied weights that stay gathered": {
        **SMALL,
        "model.flavor": "1B",
        P + "fsdp_reshard_after_forward": "never",
    },
    "a pipeline of weights in 16 bits": {**PIPELINE, P + "tensor_parallel_degree": 2, "training.dtype": "bfloat16"},
    "GPipe": {**PIPELINE, P + "pipeline_parallel_schedule": "GPipe"},
    "ZB-V": {**PIPELINE, P + "pipeline_parallel_schedule": "ZBVZeroBubble", P + "tensor_parallel_degree": 2},
    "one GPU": ONE,
    "one GPU, four steps": {**ONE, **FOUR_STEPS},
    "one GPU, full recompute": {**ONE, AC: "full"},
    "one GPU, full recompute, four steps": {**ONE, AC: "full", **FOUR_STEPS},
    "one GPU, selective recompute": {**ONE, AC: "selective"},
    "one GPU, selective recompute, four steps": {**ONE, AC: "selective", **FOUR_STEPS},
    "one GPU, few tokens": {**SMALL, **ONE},
    "one GPU, few tokens, four steps": {**SMALL, **ONE, **FOUR_STEPS},
    "one GPU, few tokens, four steps summed in 16 bits": {
        **SMALL,
        **ONE,
        **FOUR_STEPS,
        "training.mixed_precision_reduce": "bfloat16",
    },
    "one GPU, few tokens, a loss in pieces": {**SMALL, **ONE, **PIECES},
    "one GPU, few tokens, foreach": {**SMALL, **ONE, "optimizer.implementation": "foreach"},
    "one GPU, few tokens, foreach, four steps": {
        **SMALL,
        **ONE,
        **FOUR_STEPS,
        "optimizer.implementation": "foreach",
    },
    "one GPU, few tokens, for-loop": {**SMALL, **ONE, "optimizer.implementation": "for-loop"},
    "one GPU, few tokens, SGD, for-loop": {
        **SMALL,
        **ONE,
        "optimizer.name": "SGD",
        "optimizer.implementation": "for-loop",
    },
    "one GPU, few tokens, SGD": {**SMALL, **ONE, "optimizer.name": "SGD"},
    "one GPU, float32": {**ONE, "training.mixed_precision_param": "float32"},
    "one GPU, weights in 16 bits": {**ONE, **SIXTEEN_BITS},
    "one GPU, weights in 16 bits, few tokens": {**SMALL, **ONE, **SIXTEEN_BITS},
    "one GPU, weights in 16 bits, few tokens, four steps": {**SMALL, **ONE, **SIXTEEN_BITS, **FOUR_STEPS},
    "one GPU, tied weights": {**ONE, "model.flavor": "1B", AC: "full", **PIECES},
    "one GPU, tied weights, few tokens, four steps": {**SMALL, **ONE, "model.flavor": "1B", **FOUR_STEPS},
    "one GPU, rowwise float8": {**ONE, LOW + "enable": True, LOW + "recipe_name": "rowwise"},
    "one GPU, copies for each use": {**ONE, **EACH_USE},
    "one GPU, copies for each use, full recompute": {**ONE, **EACH_USE, AC: "full"},
    "one GPU, copies for each use, few tokens": {**SMALL, **ONE, **EACH_USE},
    "one GPU, copies for each use, few tokens, four steps": {**SMALL, **ONE, **EACH_USE, **FOUR_STEPS},
    "one GPU, copies for each use, tied weights": {**SMALL, **ONE, **EACH_USE, "model.flavor": "1B"},
    "tensor ranks alone, copies for each use": {**SMALL, **TENSOR, **EACH_USE},
    "stages alone, copies for each use": {**STAGES, **EACH_USE},
    "tensor ranks alone": TENSOR,
    "tensor ranks alone, four steps": {**TENSOR, **FOUR_STEPS},
    "tensor ranks alone, few tokens": {**SMALL, **TENSOR},
    "tensor ranks alone, few tokens, four steps": {**SMALL, **TENSOR, **FOUR_STEPS},
    "stages alone": STAGES,
    "stages alone, full recompute": {**STAGES, AC: "full"},
    "stages alone, few tokens": {**STAGES, **SMALL},
    "stages alone, few tokens, two steps": {**STAGES, **SMALL, "training.global_batch_size": 8},
    "stages alone, few tokens, weights in 16 bits": {**STAGES, **SMALL, **SIXTEEN_BITS},
    "stages alone, GPipe, one microbatch": {
        **STAGES,
        **SMALL,
        SCHEDULE: "GPipe",
        "training.local_batch_size": 1,
    },
    "stages alone, interleaved": {**STAGES, SCHEDULE: "Interleaved1F1B"},
    "stages alone, interleaved, few tokens": {**STAGES, **SMALL, SCHEDULE: "Interleaved1F1B"},
    "stages alone, interleaved, zero bubble": {**STAGES, SCHEDULE: "InterleavedZeroBubble"},
    "stages alone, interleaved, zero bubble, few tokens": {
        **STAGES,
        **SMALL,
        **KEEPS,
        SCHEDULE: "InterleavedZeroBubble",
    },
    "stages alone, ZB-V": {**STAGES, SCHEDULE: "ZBVZeroBubble"},
    "stages alone, ZB-V, few tokens": {**STAGES, **SMALL, **KEEPS, SCHEDULE: "ZBVZeroBubble"},
    "stages of tensor ranks alone": {**PIPELINE, P + "tensor_parallel_degree": 2},
    "stages of tensor ranks alone, few tokens": {
        **PIPELINE,
        **SMALL,
        "cluster.gpus_per_node": 4,
        P + "tensor_parallel_degree": 2,
    },
}


Peaks: TypeAlias = tuple[int | None, int | None, str | None]
"""Bytes of one stage: counted in a dry run, and planned; and what went wrong."""


def preset(name: str) -> Config:
    """A preset without the compiler, with fewer layers."""
    values = tomllib.loads(files("presets").joinpath(f"{name}.toml").read_text("utf-8"))
    return with_values(Config.model_validate(values), EAGER | PRESETS[name])


def layout(name: str) -> Config:
    """A layout of the table."""
    base = {
        "model.flavor": "8B",
        "model.shape.n_layers": 4,
        "training.seq_len": 4096,
        "cluster.gpu": "h200",
        "cluster.gpus_per_node": 8,
    }
    return with_values(Config(), base | LAYOUTS[name])


def peaks() -> dict[str, list[Peaks]]:
    """Of every stage of every preset and layout, in one process."""
    found: dict[str, list[Peaks]] = {}
    configs = {name: preset(name) for name in PRESETS} | {name: layout(name) for name in LAYOUTS}
    for name, config in configs.items():
        resolved = plan(config)
        found[name] = [
            (row["peak_bytes"], stage.memory.peak_bytes, row["error"])
            for row, stage in zip(dry_run(config, resolved), resolved.stages, strict=True)
        ]
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, list[Peaks]]:
    """All peaks, counted once."""
    rows: dict[str, list[Peaks]] = fresh(peaks)
    return rows


@pytest.mark.parametrize("name", [*PRESETS, *LAYOUTS])
def test_dry_run_and_plan_agree_within_five_percent_in_every_stage(name: str, found: dict[str, list[Peaks]]) -> None:
    counted, planned, errors = zip(*found[name], strict=True)
    assert set(errors) == {None}
    assert planned == pytest.approx(counted, rel=0.05)


def test_dry_run_and_plan_agree_within_one_percent_on_average(found: dict[str, list[Peaks]]) -> None:
    errors = [(planned or 0) / (counted or 1) - 1 for stages in found.values() for counted, planned, _ in stages]
    assert sum(map(abs, errors)) / len(errors) < 0.01
