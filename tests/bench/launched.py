"""Runs on the GPUs that are here, through `titan launch`: what benchmarks share.

Knows how a row is launched over a preset and what is read from its events.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.events import Event, event_file, read_new
from engine.hardware import kind_of, this_machine

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run: GPUs it takes, and the flags over preset fsdp-8b in bfloat16, one sequence at once."""

    name: str
    gpus: int
    flags: tuple[str, ...] = ()


def gpus_here() -> tuple[str, int]:
    """Kind and number of this machine's GPUs; ends the benchmark where there are none."""
    here = this_machine()
    if not here.gpu_names:
        sys.exit("this benchmark needs a GPU")
    gpu = kind_of(here.gpu_names[0], here.gpu_memory_bytes[0])
    assert gpu is not None, f"{here.gpu_names[0]} is not in the hardware table"
    return gpu, len(here.gpu_names)


def flags_of(row: Row, gpu: str) -> list[str]:
    """All flags of a row over the preset: its own go over those that make the preset plain."""
    float8 = "--no-quantize.dense.float8"
    return [
        f"--cluster.gpu={gpu}",
        f"--cluster.gpus_per_node={row.gpus}",
        f"{float8}.enable",
        f"{float8}.enable_fsdp_float8_all_gather",
        "--training.local_batch_size=1",
        "--activation_checkpoint.mode=none",
        "--parallelism.data_parallel_shard_degree=-1",
        *row.flags,
    ]


def run(row: Row, gpu: str, folder: Path, *, steps: int, log_freq: int) -> dict[str, Any]:
    """Launches one row and reads its events."""
    command = [sys.executable, "-m", "titancli", "launch", "--preset", "fsdp-8b", "--name", "bench"]
    command += [f"--job.dump_folder={folder}", f"--training.steps={steps}", f"--metrics.log_freq={log_freq}"]
    command += flags_of(row, gpu)
    began_s = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wall_s = time.perf_counter() - began_s
    if done.returncode:
        return {"name": row.name, "error": (done.stdout + done.stderr)[-3000:], "wall_s": wall_s}
    events = [event for rank in range(row.gpus) for event in read_new(event_file(folder / "bench", rank))[0]]
    return {"name": row.name, "wall_s": wall_s, **figures(events)}


def figures(events: list[Event]) -> dict[str, Any]:
    """What a run reached: losses and speed from rank 0, memory from the rank that took most."""
    steps = [event for event in events if event["kind"] == "step" and event["rank"] == 0]
    speeds = [event["tokens_per_s_per_gpu"] for event in steps if event["tokens_per_s_per_gpu"] is not None]
    shares = [event["mfu_pct"] for event in steps if event["mfu_pct"] is not None]
    memory = [event for event in events if event["kind"] == "memory"]
    first_step_s = next(event["time"] for event in steps) - next(e["time"] for e in events if e["kind"] == "phase")
    return {
        "tokens_per_s_per_gpu": statistics.median(speeds),
        "mfu_pct": statistics.median(shares) if shares else None,
        "peak_active_gib": max(event["peak_active_bytes"] for event in memory) / GIB,
        "peak_reserved_gib": max(event["peak_reserved_bytes"] for event in memory) / GIB,
        "losses": [event["loss"] for event in steps],
        "build_to_first_step_s": first_step_s,
        "versions": next(event["versions"] for event in events if event["kind"] == "run_started"),
    }
