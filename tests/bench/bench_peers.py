"""titan beside torchtitan 0.2.2 on the same GPU, in one command: speed, memory, time to the first step, losses.

`python tests/bench/bench_peers.py [WORDS] [--steps N] [--output FILE] [--budget-s S] [--profile]` runs the rows of
peers.toml that any word names (a part of a row's name, or of a ratio's), torchtitan first, and writes FILE after
every run; then it prints the ratios. Exits 1 where one is short or a run of titan failed. `--profile` records a few
steps of both and writes tables of kernels. `--cpu` walks through the small rows without a GPU.

torchtitan has to be installed beside titan: its wheel, torchdata, datasets, tyro, tomli and what these need.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from launched import gpus_here
from peer_rows import PeerRow, Result, Verdict, chosen, judge, read
from peer_runs import Bench, caches_of, run_peer, run_titan

ROWS = Path(__file__).resolve().parent / "peers.toml"


def runs_of(row: PeerRow, bench: Bench) -> Iterator[Result]:
    """Runs a row's sides, the peer first."""
    if row.cold:
        for side in row.sides:
            shutil.rmtree(caches_of(row, bench, side), ignore_errors=True)
    for side, runs in (("torchtitan", run_peer), ("titan", run_titan)):
        if side not in row.sides:
            continue
        if bench.left_s <= 0:
            print(f"{row.name:34} {side:10} not run: the time is over", flush=True)
            continue
        with tempfile.TemporaryDirectory(dir=bench.work, ignore_cleanup_errors=True) as folder:
            yield {"row": row.name, "side": side} | runs(row, bench, Path(folder))


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


def say_promises(results: list[Result]) -> None:
    """What titan's planner said of each of its runs, and how far off that was."""
    told = [result for result in results if result.get("promised") and "error" not in result]
    if told:
        print(f"\n{'planned, and how far off':36}{'tokens/s':>10}{'':9}{'GiB reserved':>14}")
    for result in told:
        promised = result["promised"]
        speed, memory = promised["tokens_per_s_per_gpu"], promised["reserved_gib"]
        speed_off = speed / result["tokens_per_s_per_gpu"] - 1
        memory_off = memory / result["peak_reserved_gib"] - 1
        print(f"  {result['row']:34}{speed:10,.0f}{speed_off:+8.1%}{memory:14.1f}{memory_off:+8.1%}")


def main() -> None:
    """Runs the rows, writes what came out after each, and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--steps", type=int, help="so many, not what the rows say")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--logs", type=Path, help="folder of logs and tables of kernels; left out: beside --output")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--run-s", type=float, default=240.0, help="stop a run after so many seconds")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    rows, ratios = read(ROWS)
    gpu, gpus = ("cpu", 0) if options.cpu else gpus_here()
    picked = chosen(rows, ratios, options.words, gpus=gpus)
    if options.steps is not None:
        picked = [replace(row, steps=options.steps) for row in picked]
    for row in picked:
        if row.steps // row.log_freq * row.log_freq <= row.leave_out:
            parser.error(f"{row.name}: no log step of {row.steps} comes after the {row.leave_out} that are left out")
    results: list[Result] = []
    verdicts: list[Verdict] = []
    for folder in filter(None, (options.logs, options.output and options.output.resolve().parent)):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        bench = Bench(
            gpu=gpu,
            work=Path(work),
            kept=options.logs or (options.output.resolve().parent if options.output is not None else Path(work)),
            cpu=options.cpu,
            profile=options.profile,
            ends_s=time.monotonic() + options.budget_s,
            run_s=options.run_s,
        )
        for result in (result for row in picked for result in runs_of(row, bench)):
            results.append(result)
            say(result)
            verdicts = [judge(ratio, results) for ratio in ratios]
            if options.output is not None:
                keep(options.output, bench, picked, results, verdicts)
    say_kinds(results)
    say_promises(results)
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


if __name__ == "__main__":
    main()
