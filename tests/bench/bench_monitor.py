"""What a look at a large run takes: 512 recorded ranks, read, judged and drawn, and a run of 100,000 steps.

`python tests/bench/bench_monitor.py [--output tests/bench/monitor.json]`. The looks are those of `titan monitor`, in a
process of its own, so that the memory is its own; between two looks every rank writes one report more. A benchmark, not
a test.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from titancli.monitor.watched import Watched

LOOKS = 12
STEPS, MORE_STEPS = 1_000, 10 * (LOOKS + 1)
COLUMNS, ROWS = 200, 60
LONG_STEPS = 100_000
_A_REPORT = 3  # events: memory, gpu, step


def looked(run: Path) -> dict[str, Any]:
    """Looks at a run, draws it, and waits for a line before each next look; seconds and MiB."""
    from rich.console import Console

    from titancli.monitor.screen.drawing import drawing
    from titancli.monitor.screen.panels_ink import SIGNS
    from titancli.monitor.screen.view import View

    watched = Watched(run)
    console = Console(file=io.StringIO(), width=COLUMNS, height=ROWS, force_terminal=True, color_system="truecolor")
    looks: list[float] = []
    of_cpu: list[float] = []
    draws: list[float] = []
    for _ in range(LOOKS):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        shown = watched.look()
        looks.append(time.perf_counter() - began_s)
        of_cpu.append(time.process_time() - began_cpu_s)
        began_s = time.perf_counter()
        console.print(drawing(shown, COLUMNS, ROWS, view=View(), ink=SIGNS).picture)
        draws.append(time.perf_counter() - began_s)
        print("looked", flush=True)
        sys.stdin.readline()
    watched.close()
    return {
        "ranks": len(shown.ranks),
        "step": shown.seen.step,
        "points": len(shown.seen.losses),
        "first_look_s": round(looks[0], 3),
        "first_look_cpu_s": round(of_cpu[0], 3),
        "look_s": round(median(looks[1:]), 4),
        "look_cpu_s": round(median(of_cpu[1:]), 4),
        "longest_look_s": round(max(looks[1:]), 4),
        "draw_s": round(median(draws[1:]), 4),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "alerts": [each["rule"] for each in shown.findings],
    }


def measured(run: Path, more: Sequence[Path]) -> dict[str, Any]:
    """What a process that looks at a run tells; `more` are folders with the events of one report more each."""
    command = [sys.executable, __file__, "--run", str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for folder in (*more[: LOOKS - 1], None):
            assert child.stdout.readline() == "looked\n", "the process that looks has ended early"
            for path in sorted(folder.iterdir()) if folder is not None else ():
                with (run / "events" / path.name).open("ab") as file:
                    file.write(path.read_bytes())
            child.stdin.write("\n")
            child.stdin.flush()
        told: dict[str, Any] = json.loads(child.stdout.readline())
    return told


def many_ranks(folder: Path) -> dict[str, Any]:
    """512 ranks that have reported a hundred times."""
    from tests.titancli.monitor.recorded import recorded

    run = recorded("3d-405b", steps=STEPS + MORE_STEPS, ends=None)
    place = run.write(folder, ranks=())
    lines = 3 + _A_REPORT * (1 + STEPS // run.log_freq)
    more = [folder / f"more-{number:02d}" for number in range(LOOKS)]
    for each in more:
        each.mkdir()
    for rank in range(run.plan.world_size):
        told = [json.dumps(event, separators=(",", ":")) + "\n" for event in run.events(rank)]
        name = f"rank-{rank:05d}.jsonl"
        (place / "events" / name).write_text("".join(told[:lines]), "utf-8")
        for number, each in enumerate(more):
            begin = lines + _A_REPORT * number
            (each / name).write_text("".join(told[begin : begin + _A_REPORT]), "utf-8")
    return measured(place, more)


def long_run(folder: Path) -> dict[str, Any]:
    """One rank that has reported every one of its steps."""
    from tests.titancli.monitor.recorded import recorded

    run = recorded("fsdp-8b", steps=LONG_STEPS, log_freq=1, ends=None)
    place = run.write(folder, "long", ranks=())
    path = place / "events" / "rank-00000.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(event, separators=(",", ":")) + "\n" for event in run.events(0))
    return {"file_mib": round(path.stat().st_size / (1 << 20), 1)} | measured(place, [folder / "nothing"] * LOOKS)


def main() -> None:
    """Measures both, prints what came of it, and keeps it where it is told to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--run", type=Path, help="look at this run; for the process that looks")
    arguments = parser.parse_args()
    if arguments.run is not None:
        print(json.dumps(looked(arguments.run)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "nothing").mkdir()
        found = {
            "date": datetime.now(UTC).isoformat(timespec="minutes"),
            "cpus": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 1),
            "many_ranks": many_ranks(folder),
            "long_run": long_run(folder),
        }
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
