"""Speed and memory of data-parallel training on the GPUs that are here, through `titan launch`.

`python tests/bench/bench_data_parallel.py [--output FILE]` runs each row that this machine has GPUs
for and prints tokens/s/GPU (median of the logged windows without step 1), peak reserved memory
and first and last loss; the file keeps them with date and versions. A benchmark, not a test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.events import Event, event_file, read_new
from engine.hardware import kind_of, this_machine

STEPS, LOG_FREQ = 25, 5
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run: GPUs it takes, and the flags over preset fsdp-8b."""

    name: str
    gpus: int
    flags: tuple[str, ...] = ()


ROWS = (
    Row(name="8B, FSDP 2, compile", gpus=2),
    Row(name="8B, FSDP 2, compile, never reshard", gpus=2, flags=("--parallelism.fsdp_reshard_after_forward=never",)),
    Row(name="8B, FSDP 2, eager", gpus=2, flags=("--no-compile.enable",)),
    Row(name="16 layers, 1 GPU, compile", gpus=1, flags=("--model.shape.n_layers=16",)),
    Row(name="16 layers, 1 GPU, eager", gpus=1, flags=("--model.shape.n_layers=16", "--no-compile.enable")),
    Row(
        name="16 layers, replicate 2, compile",
        gpus=2,
        flags=(
            "--model.shape.n_layers=16",
            "--parallelism.data_parallel_replicate_degree=2",
            "--parallelism.data_parallel_shard_degree=1",
        ),
    ),
)


def run(row: Row, gpu: str, folder: Path) -> dict[str, Any]:
    """Launches one row and reads its events."""
    command = [sys.executable, "-m", "titancli", "launch", "--preset", "fsdp-8b", "--name", "bench"]
    command += [f"--cluster.gpu={gpu}", f"--cluster.gpus_per_node={row.gpus}", f"--job.dump_folder={folder}"]
    command += [f"--training.steps={STEPS}", f"--metrics.log_freq={LOG_FREQ}"]
    command += ["--parallelism.data_parallel_shard_degree=-1", *row.flags]
    began_s = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wall_s = time.perf_counter() - began_s
    if done.returncode:
        return {"name": row.name, "error": (done.stdout + done.stderr)[-3000:], "wall_s": wall_s}
    events = [event for rank in range(row.gpus) for event in read_new(event_file(folder / "bench", rank))[0]]
    return {"name": row.name, "wall_s": wall_s, **figures(events)}


def figures(events: list[Event]) -> dict[str, Any]:
    """What a run reached: speed from rank 0, memory from the rank that took most."""
    steps = [event for event in events if event["kind"] == "step" and event["rank"] == 0]
    speeds = [event["tokens_per_s_per_gpu"] for event in steps if event["tokens_per_s_per_gpu"] is not None]
    reserved = [event["peak_reserved_bytes"] for event in events if event["kind"] == "memory"]
    first_step_s = next(event["time"] for event in steps) - next(e["time"] for e in events if e["kind"] == "phase")
    return {
        "tokens_per_s_per_gpu": statistics.median(speeds),
        "mfu_pct": statistics.median(event["mfu_pct"] for event in steps if event["mfu_pct"] is not None),
        "peak_reserved_gib": max(reserved) / GIB,
        "first_loss": steps[0]["loss"],
        "last_loss": steps[-1]["loss"],
        "build_to_first_step_s": first_step_s,
        "versions": next(event["versions"] for event in events if event["kind"] == "run_started"),
    }


def main() -> None:
    """Runs the rows that fit this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    here = this_machine()
    if not here.gpu_names:
        sys.exit("this benchmark needs a GPU")
    gpu = kind_of(here.gpu_names[0], here.gpu_memory_bytes[0])
    assert gpu is not None, f"{here.gpu_names[0]} is not in the hardware table"
    results: list[dict[str, Any]] = []
    for row in ROWS:
        if row.gpus > len(here.gpu_names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(row, gpu, Path(folder)))
        print(json.dumps(results[-1]), flush=True)
        if output is not None:
            kept = {"date": datetime.now(UTC).isoformat(timespec="minutes"), "gpu": here.gpu_names[0], "rows": results}
            output.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
