"""What the pulse of a rank costs: the same steps of two processes, with and without its threads, in turns.

`python tests/bench/bench_pulse.py [--output tests/bench/pulse.json]` prints the median of the pairs. Steps are short
(some milliseconds on the CPU, with a collective each), so that what the threads take is seen at its largest. On a
machine that others use the clock tells little, and what the threads take of a CPU by themselves most. A benchmark,
not a test.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from engine.beats import Point
from engine.pulse import Pulse

PAIRS, STEPS = 12, 300
DEADLINE_S = 100.0
_POINTS: tuple[Point, ...] = ("data", "gradients", "word", "update", "report")


def threads_cpu_s() -> float:
    """What the threads of the pulse have taken of a CPU until now."""
    numbers = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("titan-")]
    return sum(int(Path(f"/proc/self/task/{number}/schedstat").read_text().split()[0]) for number in numbers) / 1e9


def steps(pulse: Pulse, layers: torch.nn.Module, tokens: torch.Tensor) -> tuple[float, float]:
    """Seconds of a step, on the clock and of a CPU; the notes of where it is are taken in any case."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for step in range(STEPS):
        for point in _POINTS:
            pulse.at(point, step)
        loss = layers(tokens).square().mean()
        loss.backward()
        dist.all_reduce(loss.detach())
        layers.zero_grad()
    return (time.perf_counter() - began_s) / STEPS, (time.process_time() - began_cpu_s) / STEPS


def measured(rank: int) -> list[dict[str, float]]:
    """What one rank measures: of each pair the steps with threads and without, in an order that changes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    tokens = torch.randn(64, 256)
    pairs: list[dict[str, float]] = []
    for pair in range(-1, PAIRS):
        told: dict[str, float] = {}
        for beats in (True, False) if pair % 2 else (False, True):
            # Beats of another pair are those of another attempt.
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(pair + 1)
            pulse = Pulse(rank=rank, world_size=2, deadline_s=DEADLINE_S, limit="a limit")
            dist.barrier()
            with pulse.beating(lambda _: None) if beats else nullcontext():
                wall_s, cpu_s = steps(pulse, layers, tokens)
                told |= {"threads_pct": 100 * threads_cpu_s() / (wall_s * STEPS)} if beats else {}
            name = "with" if beats else "without"
            told |= {f"{name}_s": wall_s, f"{name}_cpu_s": cpu_s}
        pairs.append(told)
    return pairs[1:]


def worker(rank: int) -> None:
    """One of the two processes: rank 0 prints what it measured."""
    dist.init_process_group("gloo")
    pairs = measured(rank)
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(pairs))


def told(pairs: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of the steps, and of the difference within a pair in percent."""
    found: dict[str, Any] = {"threads_cpu_pct": round(median(pair["threads_pct"] for pair in pairs), 3)}
    for unit in ("s", "cpu_s"):
        more = [100 * (pair[f"with_{unit}"] / pair[f"without_{unit}"] - 1) for pair in pairs]
        found[f"step_{unit}"] = round(median(pair[f"without_{unit}"] for pair in pairs), 6)
        found[f"more_{unit.removesuffix('s')}pct"] = round(median(more), 2)
        found[f"more_{unit.removesuffix('s')}pct_of_pairs"] = [round(min(more), 2), round(max(more), 2)]
    return found


def main() -> None:
    """Starts both processes, and keeps what they say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    load = os.getloadavg()[0]
    started = [
        subprocess.Popen(
            [sys.executable, __file__], env=os.environ | common | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outs = [process.communicate()[0] for process in started]
    kept = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "torch": torch.__version__,
        "cpus": os.cpu_count(),
        "load_before": round(load, 1),
        "pairs": PAIRS,
        "steps": STEPS,
        **told(json.loads(outs[0])),
    }
    print(json.dumps(kept, indent=1))
    if output is not None:
        output.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if "RANK" in os.environ:
        worker(int(os.environ["RANK"]))
    else:
        main()
