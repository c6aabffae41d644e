"""What plans promise, against runs on a GPU that nobody looked at while the planner was built.

`python tests/bench/bench_holdout.py [--rows second] [--output FILE] [--calibration FILE] [--predict] [WORDS]` plans
each row for one H200, prints that, launches it for 12 steps, and prints what it reached and how far that lies from the
plan: memory that the allocator held, and tokens a second in the middle of the run. `--predict` only plans, on any
machine. Rows differ in model, depth, batch, length, recomputation, compiler and precision. Once the planner has
learned from rows they are held out no more: the second set is for after that. Needs a GPU and seven minutes a set.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launched import GIB, Row, flags_of, gpus_here, run

from engine.planner.plan import Plan, plan
from engine.sources import load, split_flags

STEPS, LOG_FREQ = 12, 2
FLOAT8 = "quantize.dense.float8"


def row(
    flavor: str,
    layers: int,
    batch: int,
    seq_len: int,
    recompute: str,
    *,
    eager: bool = False,
    float8: str = "",
    **more: int,
) -> Row:
    """One GPU, one model; `float8` names a recipe, `recompute` a mode or every n-th layer."""
    flags = [
        f"--model.flavor={flavor}",
        f"--model.shape.n_layers={layers}",
        f"--training.local_batch_size={batch}",
        f"--training.seq_len={seq_len}",
    ]
    mode, _, every = recompute.partition(" ")
    flags += [f"--activation_checkpoint.mode={mode}"]
    flags += [f"--activation_checkpoint.selective_ac_option={every}"] if every else []
    flags += ["--no-compile.enable"] if eager else []
    flags += [f"--{FLOAT8}.enable", f"--{FLOAT8}.recipe_name={float8}"] if float8 else []
    flags += [f"--training.{key}={value}" for key, value in more.items()]
    words = [f"{flavor} {layers} layers", f"{batch} x {seq_len}", recompute, "eager" if eager else "compile"]
    words += [f"float8 {float8}"] if float8 else []
    words += [f"{key} {value}" for key, value in more.items()]
    return Row(name=", ".join(words), gpus=1, flags=tuple(flags))


FIRST = (
    row("1B", 16, 8, 2048, "none"),
    row("1B", 10, 2, 8192, "selective op", eager=True),
    row("3B", 28, 2, 4096, "full", eager=True),
    row("3B", 14, 4, 4096, "none", float8="rowwise"),
    row("3B", 12, 1, 32768, "selective op"),
    row("8B", 12, 1, 16384, "selective 2"),
    row("8B", 5, 1, 32768, "full", eager=True),
    row("8B", 6, 4, 4096, "none", eager=True),
    row("8B", 10, 2, 8192, "selective op", float8="tensorwise"),
    row("8B", 24, 1, 2048, "none"),
    row("8B", 4, 8, 2048, "full", loss_chunks=4),
)

SECOND = (
    row("1B", 16, 4, 4096, "selective op"),
    row("1B", 6, 1, 32768, "none"),
    row("3B", 10, 8, 2048, "none", eager=True),
    row("3B", 20, 2, 8192, "full"),
    row("3B", 8, 2, 8192, "none", float8="tensorwise"),
    row("8B", 14, 2, 4096, "selective op", eager=True),
    row("8B", 8, 1, 24576, "none"),
    row("8B", 6, 8, 4096, "full", float8="rowwise"),
    row("8B", 20, 1, 4096, "selective 3"),
)
ROWS = {"first": FIRST, "second": SECOND}


def planned(one: Row, gpu: str, calibration: str) -> Plan:
    """The plan of a row; nothing of this machine's environment goes into it."""
    _, flags = split_flags([*flags_of(one, gpu), f"--cluster.calibration={calibration}"])
    return plan(load(preset="fsdp-8b", flags=flags, environ={}).config)


def promise(one: Plan) -> dict[str, Any]:
    """What the plan says of a run."""
    memory = one.memory
    assert memory.peak_bytes is not None
    assert memory.reserved_bytes is not None
    return {
        "peak_gib": memory.peak_bytes / GIB,
        "reserved_gib": memory.reserved_bytes / GIB,
        "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu,
        "calibration": one.calibration,
    }


def errors(promised: dict[str, Any], reached: dict[str, Any]) -> dict[str, float]:
    """How far the plan lies from the run, in percent of what the run reached; above 0: it promised more."""
    pairs = {
        "peak_pct": (promised["peak_gib"], reached["peak_active_gib"]),
        "reserved_pct": (promised["reserved_gib"], reached["peak_reserved_gib"]),
        "speed_pct": (promised["tokens_per_s_per_gpu"], reached["tokens_per_s_per_gpu"]),
    }
    return {name: 100 * (said / was - 1) for name, (said, was) in pairs.items()}


def measured(one: Row, gpu: str, promised: dict[str, Any]) -> dict[str, Any]:
    """Runs a row, says how it went, and gives all of it."""
    with tempfile.TemporaryDirectory() as folder:
        reached = run(one, gpu, Path(folder), steps=STEPS, log_freq=LOG_FREQ)
    if "error" in reached:
        print(f"  FAILED after {reached['wall_s']:.0f} s: {reached['error']}", flush=True)
        return {"name": one.name, "planned": promised, "error": reached["error"]}
    off = errors(promised, reached)
    del reached["losses"]
    print(
        f"  measured {reached['peak_active_gib']:7.2f} used {reached['peak_reserved_gib']:7.2f} GiB held"
        f" {reached['tokens_per_s_per_gpu']:8.0f} tokens/s: off by {off['peak_pct']:+.1f} %"
        f" {off['reserved_pct']:+.1f} % {off['speed_pct']:+.1f} %, {reached['wall_s']:.0f} s",
        flush=True,
    )
    return {"name": one.name, "flags": one.flags, "planned": promised, "measured": reached, "errors": off}


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and largest distance of each figure, in percent."""
    done = [result["errors"] for result in results if "errors" in result]
    sizes = {name: [abs(one[name]) for one in done] for name in (done[0] if done else ())}
    return {name: {"mean": statistics.mean(some), "largest": max(some)} for name, some in sizes.items()}


def main() -> None:
    """Plans the rows, and runs them unless only plans are wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only rows whose name has one of these words")
    parser.add_argument("--rows", choices=tuple(ROWS), default="first")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--calibration", default="none", help="file with measured rates, auto or none")
    parser.add_argument("--predict", action="store_true")
    options = parser.parse_args()
    gpu = "h200" if options.predict else gpus_here()[0]
    chosen = [one for one in ROWS[options.rows] if not options.words or any(word in one.name for word in options.words)]
    results: list[dict[str, Any]] = []
    for one in chosen:
        promised = promise(planned(one, gpu, options.calibration))
        print(
            f"{one.name}\n  planned  {promised['peak_gib']:7.2f} used {promised['reserved_gib']:7.2f} GiB held"
            f" {promised['tokens_per_s_per_gpu']:8.0f} tokens/s",
            flush=True,
        )
        alone = {"name": one.name, "planned": promised}
        results.append(alone if options.predict else measured(one, gpu, promised))
        if options.output is not None:
            about = {"gpu": gpu, "date": datetime.now(UTC).isoformat(timespec="minutes"), "steps": STEPS}
            kept = about | {"summary": summary(results), "rows": results}
            options.output.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(summary(results)))


if __name__ == "__main__":
    main()
