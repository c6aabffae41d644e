"""Kills both ranks of a run at random moments of saving, 30 times in each mode, and starts each run again.

A moment lies between the beginning of the second or a later save and half as long after its usual end. Counts what each
went on from: always the newest committed step, never a torn one; the losses after it are those of a run that was never
killed, bit for bit. `python tests/bench/bench_kills.py [TRIALS]` writes kills.json.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "world"))

from gloo_pool import GlooPool
from killed import kill_and_resume
from parity import Layout
from resuming import train

STEPS = 8
MODES = ("disabled", "async", "async_with_pinned_mem")


def arguments(mode: str) -> dict[str, Any]:
    """Two FSDP ranks that save after every step and keep two checkpoints."""
    keys = {"training__steps": STEPS, "checkpoint__interval": 1, "checkpoint__keep_latest_k": 2}
    return Layout(name="", degrees={"dp": 2}).arguments("AdamW") | keys | {"checkpoint__async_mode": mode}


def trials(gloo: GlooPool, mode: str, count: int, folder: Path, draw: random.Random) -> dict[str, Any]:
    """So many kills in one mode; raises where a run was lost or went on from what was not committed."""
    given = arguments(mode)
    straight = gloo.run(2, train, arguments=given, folder=str(folder / f"{mode}-straight"))[0]
    saves = [event["seconds"] for event in straight["events"] if event.get("state") == "committed"]
    longest_s = 1.5 * statistics.median(saves)
    torn, behind, seen = 0, Counter[int](), []
    for number in range(count):
        save, after_s = draw.randrange(2, STEPS - 2), draw.uniform(0.0, longest_s)
        trial = kill_and_resume(gloo, given, folder / f"{mode}-{number}", save=save, after_s=after_s)
        newest = max(trial.committed)
        assert trial.resumed_from == newest, f"{trial} did not go on from {newest}"
        assert trial.last_step == STEPS, f"{trial} was lost"
        assert all(straight["losses"][step] == loss for step, loss in trial.losses.items()), (
            f"{trial} trains to other numbers"
        )
        torn += bool(trial.unfinished)
        behind[save - newest] += 1
        seen.append([save, round(after_s, 3), newest])
    return {
        "kills": count,
        "left_a_torn_checkpoint": torn,
        "saves_lost": {str(count): behind[count] for count in sorted(behind)},
        "runs_lost": 0,
        "longest_wait_s": round(longest_s, 3),
        "in_save_after_s_resumed_from": seen,
    }


def main(count: int) -> None:
    """Runs all modes, writes the file."""
    with tempfile.TemporaryDirectory() as folder:
        gloo, draw = GlooPool(Path(folder)), random.Random(8)
        found = {mode: trials(gloo, mode, count, Path(folder), draw) for mode in MODES}
    result = {"date": time.strftime("%Y-%m-%d"), "ranks": 2, **found}
    text = json.dumps(result, indent=1)
    # One moment a line.
    text = re.sub(r"\[\s+(\d+),\s+([\d.]+),\s+(\d+)\s+\]", r"[\1, \2, \3]", text)
    (Path(__file__).with_name("kills.json")).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
