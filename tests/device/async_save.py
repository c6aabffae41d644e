"""What the runs of async_save.sh say of their checkpoints: how long training stood still, and what it lost beside them.

`async_save.py RESULT.json RUN.jsonl...` reads the events of each run's rank 0 and writes the result anew;
`--steps-apart RESULT.json` prints after how many steps a checkpoint that is written beside training is over.

`blocked_s` is what a save tells of itself: the seconds in which the training thread did nothing else. `lost_s` is seen
from outside: seconds between reports from a save until it is committed, beyond those of as many steps far from any. It
holds what the copies and the writing thread cost steps, on the device and on the host.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

Events = list[dict[str, Any]]

_WARM_AFTER = 5
_LONGEST_APART = 160
_MARGIN = 1.25


def windows(events: Events) -> list[tuple[float, float, int, int]]:
    """From one report to the next: begin, end (times), steps, tokens; without those of the first steps."""
    steps = [event for event in events if event["kind"] == "step" and event["step"] >= _WARM_AFTER]
    return [
        (before["time"], after["time"], after["step"] - before["step"], after["slots"])
        for before, after in itertools.pairwise(steps)
        if after["step"] > before["step"]
    ]


def read(events: Events) -> dict[str, Any]:
    """The figures of one run."""
    saves = [event for event in events if event["kind"] == "checkpoint"]
    begun = {event["step"]: event["time"] for event in saves if event["state"] == "begun"}
    committed = [event for event in saves if event["state"] == "committed"]
    spans = [(begun[event["step"]], event["time"]) for event in committed]
    seen = windows(events)
    alone = [
        (end - begin) / count
        for begin, end, count, _ in seen
        if not any(first < end and begin < last for first, last in spans)
    ]
    step_s = statistics.median(alone) if alone else None
    beside = [(end - begin) / count for begin, end, count, _ in seen if _is_within(begin, end, spans)]
    tokens_a_step = seen[0][3] if seen else 0
    return {
        "bytes": committed[-1]["bytes"] if committed else None,
        "saved_steps": [event["step"] for event in committed],
        "blocked_s": [round(event["blocked_s"], 4) for event in committed],
        "save_seconds": [round(event["seconds"], 3) for event in committed],
        # The last save of a run has no steps after it.
        "lost_s": [None if step_s is None else _lost_s(span, seen, step_s) for span in spans[:-1]],
        "step_s": step_s,
        "step_s_beside": statistics.median(beside) if beside else None,
        "longest_step_s_beside": max(beside, default=None),
        "tokens_per_s": tokens_a_step / step_s if step_s else None,
        "tokens_per_s_beside": tokens_a_step / statistics.median(beside) if beside else None,
        "reports_alone_and_beside": [len(alone), len(beside)],
        "warnings": [event["message"] for event in events if event["kind"] == "warning"],
        "ended": [event["reason"] for event in events if event["kind"] == "run_ended"],
    }


def _is_within(begin: float, end: float, spans: list[tuple[float, float]]) -> bool:
    """Whether all steps of a window ran while a checkpoint was written."""
    return any(first < begin and end < last for first, last in spans)


def _lost_s(span: tuple[float, float], seen: list[tuple[float, float, int, int]], step_s: float) -> float:
    """Time beyond that of as many steps alone, over the windows that a save touches."""
    touched = [(end - begin) - count * step_s for begin, end, count, _ in seen if span[0] < end and begin < span[1]]
    return round(sum(touched), 3)


def main(result: Path, runs: list[Path]) -> None:
    """Reads all runs; `waits` is the synchronous one that others are held against, from the second save on."""
    found: dict[str, Any] = {}
    for run in runs:
        found[run.stem] = read([json.loads(line) for line in run.read_text().splitlines()])
    waits = found.get("waits", {}).get("blocked_s", [])[1:]
    for name, figures in found.items():
        later = figures["blocked_s"][1:]
        if name != "waits" and waits and later:
            figures["blocked_share_of_waiting"] = statistics.mean(later) / statistics.mean(waits)
    result.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in list(found)}, indent=1))


def steps_apart(result: Path) -> int:
    """How many steps a checkpoint needs that is written beside them, some more, in whole reports of five."""
    waits = (json.loads(result.read_text()) if result.exists() else {}).get("waits", {})
    if not waits.get("step_s") or not waits.get("save_seconds"):
        return 100
    steps = _MARGIN * max(waits["save_seconds"]) / waits["step_s"] + 10
    return min(_LONGEST_APART, 5 * math.ceil(steps / 5))


if __name__ == "__main__":
    if sys.argv[1] == "--steps-apart":
        print(steps_apart(Path(sys.argv[2])))
    else:
        main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
