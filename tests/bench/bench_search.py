"""How long the search takes, how much it judges, and whether it beats the layouts that were published.

Rows are the mission's three models and the long one. Each runs `titan plan` as a process of its own, as a person
would; `--output FILE` writes JSON, which is kept in tests/bench/search.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engine.planner.plan import plan
from engine.sources import load

GIB = 1 << 30
# The presets that hold published layouts, with the seconds that a search may take on two cores.
ROWS = {"fsdp-8b": 1.0, "2d-70b": 10.0, "3d-405b": 10.0, "4d-405b-long": 10.0}
GOALS = ("prototype", "production", "max-performance")
TITAN = (sys.executable, "-c", "import sys; sys.argv[0] = 'titan'; from titancli.start import main; main()")


def row(preset: str, goal: str) -> dict[str, Any]:
    """One search: its seconds from start to end, what it judged, its winner beside the published layout."""
    begun, cpu = time.perf_counter(), _cpu_s()
    done = subprocess.run(
        [*TITAN, "plan", "--preset", preset, "--goal", goal, "--json"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "TITAN_JOB__NAME": ""},
    )
    wall_s, cpu_s = time.perf_counter() - begun, _cpu_s() - cpu
    told = json.loads(done.stdout)
    best, published = told["candidates"][0], plan(load(preset=preset, environ={}).config)
    memory = best["plan"]["memory"]
    return {
        "preset": preset,
        "goal": goal,
        "process_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "limit_s": ROWS[preset],
        "searched": told["searched"],
        "mesh": best["plan"]["mesh"],
        "tokens_per_s_per_gpu": best["plan"]["tokens_per_s_per_gpu"],
        "published_tokens_per_s_per_gpu": published.tokens_per_s_per_gpu,
        "peak_gib": round(memory["peak_bytes"] / GIB, 1),
        "capacity_gib": round(memory["capacity_bytes"] / GIB, 1),
        "fits": memory["fits"],
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Prints the table; 1 where a limit is passed or a published layout is faster than the best of all goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    rows = [row(preset, goal) for preset in ROWS for goal in GOALS]
    for each in rows:
        rate, published = each["tokens_per_s_per_gpu"], each["published_tokens_per_s_per_gpu"]
        print(
            f"{each['preset']:14} {each['goal']:16} {each['process_s']:6.2f} s  {each['searched']:6,} judged  "
            f"{rate:9,.1f} tokens/s/GPU, published layout {published:9,.1f}  "
            f"{each['peak_gib']:5.1f} of {each['capacity_gib']} GiB"
        )
    if asked.output is not None:
        asked.output.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    fast = all(each["cpu_s"] <= each["limit_s"] and each["fits"] for each in rows)
    won = all(
        each["tokens_per_s_per_gpu"] >= each["published_tokens_per_s_per_gpu"]
        for each in rows
        if each["goal"] != "prototype"
    )
    return 0 if fast and won else 1


if __name__ == "__main__":
    sys.exit(main())
