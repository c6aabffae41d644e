"""titan beside torchtitan 0.2.2 on the same GPU, in one command: speed, memory, time to the first step, losses.

`python tests/bench/bench_peers.py [WORDS] [--steps N] [--output FILE] [--budget-s S] [--profile]` runs the rows of
peers.toml that any word names (a part of a row's name, or of a ratio's), torchtitan first, and writes FILE after
every run; then it prints the ratios. Exits 1 where one is short or a run of titan failed. `--profile` records a few
steps of both and writes tables of kernels beside FILE. `--cpu` walks through the small rows without a GPU.

torchtitan has to be installed beside titan: its wheel, torchdata, datasets, tyro, tomli and what these need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from kernel_times import by_kind, kernels_of, table
from launched import GIB, Row, flags_of, gpus_here
from peer_assets import assets
from peer_config import config_file
from peer_rows import PeerRow, Result, Side, Verdict, chosen, judge, read
from torchtitan_run import Job

from engine.events import event_file, read_new

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROFILED_STEPS = 3
TITANS_TRACE = 10
"""The step whose trace titan keeps under --profile; it records the step before it too."""
SHOWN = 1500
"""Characters of a failed run's output that are kept."""


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

    The rate rises by 3e-6 a step from the first to the last, as in the preset's first steps: a faster rise spikes the
    loss, and no two programs can be compared there.
    """
    own = (
        *(("--model.flavor=debugmodel",) if row.cpu else ()),
        f"--model.shape.n_layers={row.layers}",
        f"--training.seq_len={row.seq_len}",
        f"--training.local_batch_size={row.batch}",
        f"--training.steps={row.steps}",
        f"--metrics.log_freq={row.log_freq}",
        f"--lr_scheduler.warmup_steps={row.steps}",
        f"--optimizer.lr={3e-6 * row.steps:g}",
        *row.titan,
    )
    return flags_of(Row(name=row.name, gpus=1, flags=own), bench.gpu)


def run_peer(row: PeerRow, bench: Bench, folder: Path) -> Result:
    """One run of torchtitan, as its own run_train.sh starts it."""
    trace = folder / "trace.json.gz"
    job = Job(
        flags=flags(row, bench),
        lines=str(folder / "lines"),
        own=row.own,
        cpu=bench.cpu,
        profile_from=TITANS_TRACE - 1 if bench.profile else None,
        profiled_steps=PROFILED_STEPS,
        trace=str(trace),
    )
    (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    config_file(row, job.flags, folder, assets(bench.work) if row.own else None)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", "--rdzv_backend=c10d"]
    command += ["--rdzv_endpoint=localhost:0", "--local-ranks-filter=0", "--role=rank", "--tee=3"]
    command += [str(HERE / "torchtitan_run.py"), str(folder / "job.json")]
    command += ["--job.config_file", str(folder / "torchtitan.toml")]
    ended = run(
        command, surroundings(row, bench, "torchtitan") | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, bench
    )
    lines = [json.loads(line) for line in _text(folder / "lines.0").splitlines()]
    steps = [line for line in lines if "step" in line]
    if ended.code != 0 or not steps:
        return failed(ended)
    figures = figures_of(row, steps, began=ended.began) | {"wall_s": ended.wall_s, "versions": lines[0]["versions"]}
    return figures | (profiled(row, bench, "torchtitan", trace, steps=PROFILED_STEPS) if bench.profile else {})


def run_titan(row: PeerRow, bench: Bench, folder: Path) -> Result:
    """One run of titan, as a person starts it."""
    command = [sys.executable, "-m", "titancli", "launch", "--preset", "fsdp-8b", "--name", "bench"]
    command += [f"--job.dump_folder={folder}", *flags(row, bench)]
    if bench.profile:
        command += ["--profiling.enable_profiling", f"--profiling.profile_freq={TITANS_TRACE}"]
    ended = run(command, surroundings(row, bench, "titan"), bench)
    if ended.code != 0:
        return failed(ended)
    events = read_new(event_file(folder / "bench", 0))[0]
    memory = [event for event in events if event["kind"] == "memory"]
    peaks = {
        "peak_active_gib": max(event["peak_active_bytes"] or 0 for event in memory) / GIB,
        "peak_reserved_gib": max(event["peak_reserved_bytes"] or 0 for event in memory) / GIB,
        "alloc_retries": max(event["alloc_retries"] or 0 for event in memory),
    }
    steps = [event | peaks for event in events if event["kind"] == "step"]
    versions = next(event["versions"] for event in events if event["kind"] == "run_started")
    figures = figures_of(row, steps, began=ended.began) | {"wall_s": ended.wall_s, "versions": versions}
    traces = sorted((folder / "bench" / "profiles").glob(f"step-{TITANS_TRACE:08d}-*"))
    return figures | (profiled(row, bench, "titan", traces[0], steps=2, only_launched=True) if traces else {})


def figures_of(row: PeerRow, steps: list[dict[str, Any]], *, began: float) -> Result:
    """What a run reached, from its log steps; `began` is when its command did."""
    rates = [step["tokens_per_s_per_gpu"] for step in steps if step["step"] > row.leave_out]
    speed = median(rates)
    return {
        "tokens_per_s_per_gpu": speed,
        "step_s": row.batch * row.seq_len / speed,
        "rates": rates,
        "peak_active_gib": max(step["peak_active_gib"] for step in steps),
        "peak_reserved_gib": max(step["peak_reserved_gib"] for step in steps),
        "alloc_retries": max(step["alloc_retries"] for step in steps),
        "first_step_s": next(step["time"] for step in steps if step["step"] == 1) - began,
        "losses": {str(step["step"]): step["loss"] for step in steps},
        "grad_norms": {str(step["step"]): step["grad_norm"] for step in steps},
    }


def profiled(row: PeerRow, bench: Bench, side: Side, trace: Path, *, steps: int, only_launched: bool = False) -> Result:
    """Milliseconds of each kind of kernel a step; the table of kernels is kept as a file."""
    kernels = kernels_of(trace, steps=steps, only_launched=only_launched)
    (bench.kept / f"kernels, {row.name}, {side}.txt").write_text(table(kernels), encoding="utf-8")
    return {"kinds_ms": by_kind(kernels)}


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


def run(command: list[str], environment: dict[str, str], bench: Bench) -> Ended:
    """Runs a command to its end, or until the time is over; then all that it started is ended with it."""
    with tempfile.TemporaryFile() as output:
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
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        wall_s = time.perf_counter() - began_s
        output.seek(0)
        return Ended(code=code, began=began, wall_s=wall_s, output=output.read().decode(errors="replace"))


def failed(ended: Ended) -> Result:
    """What is kept of a run that ended badly: the lines that name an error, else the last ones."""
    lines = ended.output.splitlines()
    telling = [line for line in lines if "Error" in line or "error[" in line or "out of memory" in line]
    why = "stopped: its time was over\n" if ended.code is None else ""
    told = "\n".join([*telling[:3], *lines[-12:]])[-SHOWN:]
    return {"error": why + told, "out_of_memory": "out of memory" in ended.output, "wall_s": ended.wall_s}


def both(row: PeerRow, bench: Bench) -> list[Result]:
    """Runs a row's sides, the peer first; says each."""
    results: list[Result] = []
    if row.cold:
        for side in row.sides:
            shutil.rmtree(caches_of(row, bench, side), ignore_errors=True)
    for side, runs in (("torchtitan", run_peer), ("titan", run_titan)):
        if side not in row.sides:
            continue
        with tempfile.TemporaryDirectory(dir=bench.work, ignore_cleanup_errors=True) as folder:
            result = {"row": row.name, "side": side} | runs(row, bench, Path(folder))
        results.append(result)
        say(result)
    return results


def say(result: Result) -> None:
    """One line of a run."""
    head = f"{result['row']:34} {result['side']:10}"
    if "error" in result:
        what = "OUT OF MEMORY" if result["out_of_memory"] else "FAILED"
        print(f"{head} {what} after {result['wall_s']:.0f} s: {result['error']}", flush=True)
        return
    print(
        f"{head}{result['tokens_per_s_per_gpu']:10,.0f} tokens/s{result['step_s'] * 1000:9.1f} ms a step"
        f"{result['peak_reserved_gib']:8.2f} GiB reserved{result['peak_active_gib']:8.2f} active"
        f"{result['first_step_s']:7.1f} s to step 1{result['wall_s']:7.1f} s in all",
        flush=True,
    )


def say_verdicts(verdicts: list[Verdict]) -> None:
    """The table of ratios."""
    print()
    for verdict in verdicts:
        ratio = verdict.ratio
        if ratio.kind == "losses":
            value, asked = "", f"within {ratio.within:g}"
        else:
            value, asked = "" if verdict.value is None else f"{verdict.value:.3f}", f"at least {ratio.least:.2f}"
        word = {True: "ok", False: "SHORT", None: "-"}[verdict.holds]
        print(f"{ratio.name:54} {value:>7} {asked:14} {word:6} {verdict.words}")


def say_kinds(results: list[Result]) -> None:
    """Milliseconds a step by kind of kernel, both sides of a row beside each other."""
    for row in dict.fromkeys(result["row"] for result in results if result.get("kinds_ms")):
        sides = {
            result["side"]: result["kinds_ms"] for result in results if result["row"] == row and "kinds_ms" in result
        }
        print(f"\n{row}: ms of kernels a step{'':12}{'torchtitan':>12}{'titan':>12}{'difference':>12}")
        kinds = dict.fromkeys(kind for told in sides.values() for kind in told if kind != "sum")
        for kind in (*kinds, "sum"):
            theirs, ours = (sides.get(side, {}).get(kind, 0.0) for side in ("torchtitan", "titan"))
            print(f"  {kind:38}{theirs:12.2f}{ours:12.2f}{ours - theirs:12.2f}")


def main() -> None:
    """Runs the rows, writes what came out after each, and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--steps", type=int, help="so many, not what the rows say")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--run-s", type=float, default=240.0, help="stop a run after so many seconds")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    rows, ratios = read(HERE / "peers.toml")
    picked = chosen(rows, ratios, options.words, cpu=options.cpu)
    if options.steps is not None:
        picked = [replace(row, steps=options.steps) for row in picked]
    results: list[Result] = []
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        bench = Bench(
            gpu="cpu" if options.cpu else gpus_here()[0],
            work=Path(work),
            kept=options.output.resolve().parent if options.output is not None else Path.cwd(),
            cpu=options.cpu,
            profile=options.profile,
            ends_s=time.monotonic() + options.budget_s,
            run_s=options.run_s,
        )
        for row in picked:
            if bench.left_s <= 0:
                print(f"{row.name:34} not run: the time is over", flush=True)
                continue
            results += both(row, bench)
            verdicts = [judge(ratio, results) for ratio in ratios]
            if options.output is not None:
                keep(options.output, bench, picked, results, verdicts)
    say_kinds(results)
    told = [verdict for verdict in verdicts if verdict.words != "not run"]
    say_verdicts(told)
    if any(verdict.holds is False for verdict in told) or any(
        "error" in one for one in results if one["side"] == "titan"
    ):
        sys.exit(1)


def keep(path: Path, bench: Bench, rows: list[PeerRow], results: list[Result], verdicts: list[Verdict]) -> None:
    """Writes everything that is known so far."""
    told = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "gpu": bench.gpu,
        "host": platform.platform(),
        "profiled": bench.profile,
        "rows": [asdict(row) for row in rows if row.name in {result["row"] for result in results}],
        "runs": results,
        "ratios": [
            {
                "name": verdict.ratio.name,
                "value": verdict.value,
                "asked": verdict.ratio.within if verdict.ratio.kind == "losses" else verdict.ratio.least,
                "holds": verdict.holds,
                "words": verdict.words,
            }
            for verdict in verdicts
            if verdict.words != "not run"
        ],
    }
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    main()
