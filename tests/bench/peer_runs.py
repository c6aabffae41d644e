"""Runs of torchtitan and of titan for bench_peers.py, and what is read from them.

Knows how each is started, where it keeps what it compiled, and which figures it leaves behind. Does not know which rows
there are, nor what is asked of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench_holdout import promise
from kernel_times import by_kind, gaps_of, kernels_of, table, table_of_gaps
from launched import GIB, Row, flags_of
from peer_assets import assets
from peer_config import config_file
from peer_rows import PeerRow, Result, Side
from torchtitan_run import Job

from engine.events import event_file, read_new
from engine.planner.plan import plan
from engine.reading.flags import split_flags
from engine.sources import load

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROFILED_STEPS = 3
"""Last steps of a run of torchtitan that --profile records; of titan it records two. They count for no speed."""
GRACE_S = 15.0
SHOWN = 400
"""Characters of a line of a failed run's output that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all runs of one command share; `work` holds run folders and caches, `kept` what is kept of them."""

    gpu: str
    work: Path
    kept: Path
    cpu: bool
    profile: bool
    ends_s: float
    run_s: float

    @property
    def left_s(self) -> float:
        """Seconds that a run may still take."""
        return min(self.run_s, self.ends_s - time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One process that ended: `began` on the Unix clock; None for a code: it was stopped."""

    code: int | None
    began: float
    wall_s: float
    output: str


def flags(row: PeerRow, bench: Bench) -> list[str]:
    """All flags of titan's run over preset fsdp-8b.

    The rate rises by 3e-6 a step, as in the preset's first steps, for 20 of them, and falls to zero from there: a
    faster rise spikes the loss, and no two programs can be compared there.
    """
    rising = min(row.steps, 20)
    own = (
        *(("--model.flavor=debugmodel",) if row.cpu else ()),
        f"--model.shape.n_layers={row.layers}",
        f"--training.seq_len={row.seq_len}",
        f"--training.local_batch_size={row.batch}",
        f"--training.steps={row.steps}",
        f"--metrics.log_freq={row.log_freq}",
        f"--lr_scheduler.warmup_steps={rising}",
        f"--optimizer.lr={3e-6 * rising:g}",
        *row.titan,
    )
    return flags_of(Row(name=row.name, gpus=row.gpus, flags=own), bench.gpu)


def run_peer(row: PeerRow, bench: Bench, folder: Path) -> Result:
    """One run of torchtitan, as its own run_train.sh starts it."""
    trace = folder / "trace.json.gz"
    last = row.steps
    recorded = min(PROFILED_STEPS, last - 1)
    job = Job(
        flags=flags(row, bench),
        lines=str(folder / "lines"),
        own=row.own,
        cpu=bench.cpu,
        profile_from=last - recorded + 1 if bench.profile else None,
        profiled_steps=recorded,
        trace=str(trace),
    )
    (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    config_file(row, job.flags, folder, assets(bench.work) if row.own else None)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={row.gpus}", "--rdzv_backend=c10d"]
    command += ["--rdzv_endpoint=localhost:0", "--local-ranks-filter=0", "--role=rank", "--tee=3"]
    command += [str(HERE / "torchtitan_run.py"), str(folder / "job.json")]
    command += ["--job.config_file", str(folder / "torchtitan.toml")]
    ended = run(row, bench, "torchtitan", command, PYTORCH_ALLOC_CONF="expandable_segments:True")
    if ended.code != 0:
        return failed(ended)
    ranks = [_lines(folder / f"lines.{rank}") for rank in range(row.gpus)]
    memory = [line for (_, *steps) in ranks for line in steps]
    figures = figures_of(row, ranks[0][1:], memory, ended, profile=bench.profile) | {
        "versions": ranks[0][0]["versions"]
    }
    return figures | (profiled(row, bench, "torchtitan", trace, steps=recorded) if bench.profile else {})


def run_titan(row: PeerRow, bench: Bench, folder: Path) -> Result:
    """One run of titan, as a person starts it."""
    command = [sys.executable, "-m", "titancli", "launch", "--preset", "fsdp-8b", "--name", "bench"]
    command += [f"--job.dump_folder={folder}", *flags(row, bench)]
    last = row.steps
    if bench.profile:
        command += ["--profiling.enable_profiling", f"--profiling.profile_freq={last}"]
    ended = run(row, bench, "titan", command)
    if ended.code != 0:
        return failed(ended)
    events = [event for rank in range(row.gpus) for event in read_new(event_file(folder / "bench", rank))[0]]
    memory = [
        {
            "peak_active_gib": (event["peak_active_bytes"] or 0) / GIB,
            "peak_reserved_gib": (event["peak_reserved_bytes"] or 0) / GIB,
            "alloc_retries": event["alloc_retries"] or 0,
        }
        for event in events
        if event["kind"] == "memory"
    ]
    steps = [event for event in events if event["kind"] == "step" and event["rank"] == 0]
    versions = next(event["versions"] for event in events if event["kind"] == "run_started")
    figures = figures_of(row, steps, memory, ended, profile=bench.profile) | {"versions": versions}
    figures["promised"] = promised(row, bench)
    traces = sorted((folder / "bench" / "profiles").glob(f"step-{last:08d}-*"))
    return figures | (profiled(row, bench, "titan", traces[0], steps=2, only_launched=True) if traces else {})


def promised(row: PeerRow, bench: Bench) -> dict[str, Any] | None:
    """What titan's planner says of the run; None on a CPU."""
    loaded = load(preset="fsdp-8b", flags=split_flags(flags(row, bench))[1], environ={})
    return None if row.cpu else promise(plan(loaded.config))


def figures_of(
    row: PeerRow, steps: list[dict[str, Any]], memory: list[dict[str, Any]], ended: Ended, *, profile: bool
) -> Result:
    """What a run reached: speed and losses from rank 0's log steps, memory from those of the rank that took most."""
    undisturbed = range(row.leave_out + 1, row.steps if profile else row.steps + 1)
    rates = [step["tokens_per_s_per_gpu"] for step in steps if step["step"] in undisturbed]
    speed = median(rates)
    return {
        "wall_s": ended.wall_s,
        "tokens_per_s_per_gpu": speed,
        "step_s": row.batch * row.seq_len / speed,
        "rates": rates,
        "peak_active_gib": max(line["peak_active_gib"] for line in memory),
        "peak_reserved_gib": max(line["peak_reserved_gib"] for line in memory),
        "alloc_retries": max(line["alloc_retries"] for line in memory),
        "first_step_s": next(step["time"] for step in steps if step["step"] == 1) - ended.began,
        "losses": {str(step["step"]): step["loss"] for step in steps},
        "grad_norms": {str(step["step"]): step["grad_norm"] for step in steps},
    }


def profiled(row: PeerRow, bench: Bench, side: Side, trace: Path, *, steps: int, only_launched: bool = False) -> Result:
    """Milliseconds of each kind of kernel a step; the table of kernels is kept as a file."""
    kernels = kernels_of(trace, steps=steps, only_launched=only_launched)
    (bench.kept / f"{row.name}, {side}, kernels.txt").write_text(
        table(kernels) + "\n" + table_of_gaps(trace), encoding="utf-8"
    )
    span_ms, idle_ms, _ = gaps_of(trace)
    return {"kinds_ms": by_kind(kernels), "idle_pct": 100 * idle_ms / span_ms if span_ms else None}


def caches_of(row: PeerRow, bench: Bench, side: Side) -> Path:
    """Where a side of a row keeps what it compiled."""
    return bench.work / "caches" / f"{row.caches}-{side}"


def surroundings(row: PeerRow, bench: Bench, side: Side) -> dict[str, str]:
    """Environment of a run: compile caches of its side, titan importable, and no look at a network."""
    caches = caches_of(row, bench, side)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "HF_HOME": str(caches / "huggingface"),
        "HF_HUB_OFFLINE": "1",
    }


def run(row: PeerRow, bench: Bench, side: Side, command: list[str], **more: str) -> Ended:
    """Runs a command to its end, or until the time is over; what it says is kept. `more` goes over its environment."""
    environment = surroundings(row, bench, side) | more
    with (bench.kept / f"{row.name}, {side}.log").open("w+b") as output:
        began, began_s = time.time(), time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=bench.left_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                end(process)
        wall_s = time.perf_counter() - began_s
        output.seek(0)
        return Ended(code=code, began=began, wall_s=wall_s, output=output.read().decode(errors="replace"))


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a launcher: by a signal that it hands on to its ranks, which have sessions of their own, else by force."""
    process.terminate()
    try:
        process.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def failed(ended: Ended) -> Result:
    """What is kept of a run that ended badly: the lines that name an error, else the last ones."""
    lines = ended.output.splitlines()
    telling = [line for line in lines if "Error:" in line or "error[" in line or "out of memory" in line]
    why = "stopped: its time was over\n" if ended.code is None else ""
    told = "\n".join(line[:SHOWN] for line in (*dict.fromkeys(telling[:4]), "...", *lines[-8:]))
    return {"error": why + told, "out_of_memory": "out of memory" in ended.output, "wall_s": ended.wall_s}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
