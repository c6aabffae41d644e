"""Losses of one model on GPUs in every layout and precision, against one run in bfloat16.

`python tests/bench/bench_parity.py [--layers 8] [--gpus N] [--output FILE] [WORDS]` runs each row that this machine has
GPUs for through `titan launch` (the 8B shape with fewer layers, 8,192 tokens, 20 steps) and prints the
largest relative distance of its losses from the reference, the bound that the row has, speed and memory.
Exits 1 where a row failed or is out of its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launched import Row, gpus_here, run

STEPS = 20
# What the preset's first 20 steps have: 3e-4 after 100. A rate that rises to its peak in 20 steps spikes at 2.4e-4,
# where one batch's loss is 2.8 in bfloat16 and 3.7 in float32, and no two precisions can be compared.
RATE = ("--lr_scheduler.warmup_steps=20", "--optimizer.lr=6e-5")
EAGER = "--no-compile.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A row and the largest relative distance of any step's loss from the reference."""

    row: Row
    within: float = 0.01


def bound(name: str, *flags: str, gpus: int = 1, within: float = 0.01) -> Bound:
    """A row by its flags."""
    return Bound(row=Row(name=name, gpus=gpus, flags=flags), within=within)


def keys(section: str, **values: object) -> tuple[str, ...]:
    """Flags of one section."""
    return tuple(f"--{section}.{key}={value}" for key, value in values.items())


def axes(**values: object) -> tuple[str, ...]:
    """Flags of [parallelism]; the last degree of an axis that is left out is 1."""
    return keys("parallelism", **values)


def pipeline(schedule: str, *, batch: int = 8) -> tuple[str, ...]:
    """Two pipeline ranks, `batch` microbatches of one sequence."""
    return (
        *axes(pipeline_parallel_degree=2, pipeline_parallel_schedule=schedule),
        *keys("training", local_batch_size=batch),
        *((EAGER,) if "Zero" in schedule or schedule == "DualPipeV" else ()),
    )


FLOAT8, MX = "quantize.dense.float8", "quantize.dense.mx"
REFERENCE = bound("bf16, compile")
ONE_GPU = (
    REFERENCE,
    bound("bf16, eager", EAGER),
    bound("fp32, eager", EAGER, "--training.mixed_precision_param=float32"),
    bound("selective op", *keys("activation_checkpoint", mode="selective")),
    bound("every 2nd layer", *keys("activation_checkpoint", mode="selective", selective_ac_option=2)),
    bound("full recompute", *keys("activation_checkpoint", mode="full")),
    bound("memory budget 0.5", *keys("activation_checkpoint", mode="memory_budget", memory_budget=0.5)),
    bound("eager, selective op", EAGER, *keys("activation_checkpoint", mode="selective")),
    bound("eager, full recompute", EAGER, *keys("activation_checkpoint", mode="full")),
    bound("8 loss chunks", *keys("training", loss_chunks=8)),
    bound("float8 tensorwise", *keys(FLOAT8, enable="true", recipe_name="tensorwise"), within=0.02),
    bound("float8 rowwise", *keys(FLOAT8, enable="true", recipe_name="rowwise"), within=0.02),
    bound("float8 rowwise_with_gw_hp", *keys(FLOAT8, enable="true", recipe_name="rowwise_with_gw_hp"), within=0.02),
    bound("MXFP8 emulated", *keys(MX, enable="true", recipe_name="mxfp8_emulated"), within=0.02),
)


def two_gpus() -> Iterator[Bound]:
    """Every axis over two GPUs; the global batch stays that of one GPU."""
    one = keys("training", global_batch_size=8, local_batch_size=1)
    for name, degrees in {
        "FSDP 2": axes(data_parallel_shard_degree=2),
        "replicate 2": axes(data_parallel_replicate_degree=2, data_parallel_shard_degree=1),
        "TP 2": axes(tensor_parallel_degree=2),
        "async TP 2": axes(tensor_parallel_degree=2, enable_async_tensor_parallel="true"),
        "CP 2 allgather": axes(context_parallel_degree=2),
        "CP 2 ring": axes(context_parallel_degree=2, context_parallel_method="ring"),
        "CP 2 ulysses": axes(context_parallel_degree=2, context_parallel_method="ulysses"),
    }.items():
        yield bound(name, *one, *degrees, gpus=2)
        yield (
            bound(f"{name}, eager", *one, *degrees, EAGER, gpus=2)
            if "async" not in name
            else bound("TP 2, loss gathered", *one, *degrees, "--parallelism.disable_loss_parallel", gpus=2)
        )
    for schedule in ("1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
        yield bound(f"PP 2 {schedule}", *pipeline(schedule), gpus=2)
    for recipe in ("tensorwise", "rowwise"):
        for name, degrees in {"FSDP 2": (), "TP 2": axes(tensor_parallel_degree=2)}.items():
            flags = keys(FLOAT8, enable="true", recipe_name=recipe)
            yield bound(f"{name}, float8 {recipe}", *one, *degrees, *flags, gpus=2, within=0.02)
    gathered = keys(FLOAT8, enable="true", recipe_name="tensorwise", enable_fsdp_float8_all_gather="true")
    yield bound("FSDP 2, float8 gathered", *one, *gathered, gpus=2, within=0.02)


EIGHT_GPUS = (
    bound("FSDP 8", gpus=8),
    bound("HSDP 2x4", *axes(data_parallel_replicate_degree=2, data_parallel_shard_degree=4), gpus=8),
    bound("FSDP 4 x TP 2", *axes(tensor_parallel_degree=2), *keys("training", global_batch_size=8), gpus=8),
    bound("FSDP 2 x TP 4", *axes(tensor_parallel_degree=4), *keys("training", global_batch_size=8), gpus=8),
    *(
        bound(f"PP 2 x FSDP 2 x TP 2 {schedule}", *pipeline(schedule, batch=4), *axes(tensor_parallel_degree=2), gpus=8)
        for schedule in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")
    ),
    *(
        bound(
            f"FSDP {8 // cp} x CP {cp}",
            *axes(context_parallel_degree=cp),
            *keys("training", global_batch_size=8),
            gpus=8,
        )
        for cp in (2, 4)
    ),
)


def distance(losses: list[float], reference: list[float]) -> float:
    """The largest relative distance of any step."""
    assert len(losses) == len(reference) == STEPS, f"{len(losses)} steps against {len(reference)}"
    return max(abs(loss - other) / other for loss, other in zip(losses, reference, strict=True))


def main() -> None:
    """Runs the rows of this machine's number of GPUs, the reference first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--gpus", type=int, choices=(1, 2, 8), help="rows of so many, not of all GPUs that are here")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    gpu, here = gpus_here()
    count = options.gpus or here
    rows = {1: ONE_GPU, 2: tuple(two_gpus()), 4: tuple(two_gpus()), 8: EIGHT_GPUS}[count]
    names = {row.row.name for row in rows}
    # A word that is a whole name means that row alone.
    chosen = [
        row
        for row in rows
        if not options.words
        or row.row.name in options.words
        or any(word in row.row.name for word in options.words if word not in names)
    ]
    batch = {1: 1, 2: 8, 4: 8, 8: 8}[count]
    reference = bound(
        f"reference: 1 GPU, {batch} sequences", *keys("training", global_batch_size=batch, local_batch_size=1)
    )
    results: list[dict[str, Any]] = []
    for row in (reference, *chosen):
        flags = (f"--model.shape.n_layers={options.layers}", *RATE, *row.row.flags)
        with tempfile.TemporaryDirectory() as folder:
            one = Row(name=row.row.name, gpus=row.row.gpus, flags=flags)
            result = run(one, gpu, Path(folder), steps=STEPS, log_freq=1)
        if "losses" in result and (not results or "losses" in results[0]):
            result["distance"] = distance(result["losses"], (results or [result])[0]["losses"])
            result["within"] = row.within
        results.append(result)
        say(result)
        if options.output is not None:
            kept = {"date": datetime.now(UTC).isoformat(timespec="minutes"), "gpu": gpu, "layers": options.layers}
            options.output.write_text(json.dumps(kept | {"rows": results}, indent=1) + "\n")
    if not all("distance" in result and result["distance"] <= result["within"] for result in results):
        sys.exit(1)


def say(result: dict[str, Any]) -> None:
    """One line of the table."""
    if "error" in result:
        print(f"{result['name']:36} FAILED after {result['wall_s']:.0f} s: {result['error']}", flush=True)
        return
    verdict = "ok" if result["distance"] <= result["within"] else "OUT"
    print(
        f"{result['name']:36} loss within {result['distance']:.2e} of {result['within']:.0%} {verdict:>4}"
        f"{result['tokens_per_s_per_gpu']:9.0f} tokens/s/GPU {result['peak_active_gib']:7.2f} GiB active"
        f" {result['build_to_first_step_s']:6.1f} s to step 1 {result['wall_s']:6.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
