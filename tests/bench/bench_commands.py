"""How long each command of the front takes, from its start as a process to its end.

`python tests/bench/bench_commands.py` prints medians of seven beside the limits that people were promised, and
exits 1 where one is passed; `--output tests/bench/commands.json` keeps them. On a machine that others use the seconds
of a CPU say more than those on the clock: by them it is judged. Not a test.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROUNDS = 7
TITAN = (sys.executable, "-c", "import sys; sys.argv[0] = 'titan'; from titancli.start import main; main()")
# What is read and what is searched; the two large ones are beyond what was promised, and are kept in sight.
AT_ONCE_S, SEARCH_S, LARGE_S = 0.5, 1.0, 3.0
_8B = "--model 8B --gpu h100-80 --nodes 1 --gpus-per-node 8 --seq-len 8192 --goal production"
COMMANDS: tuple[tuple[str, float], ...] = (
    ("--help", AT_ONCE_S),
    ("--version", AT_ONCE_S),
    ("init --help", AT_ONCE_S),
    ("presets", AT_ONCE_S),
    ("completion bash", AT_ONCE_S),
    ("schema", AT_ONCE_S),
    ("validate run.toml", AT_ONCE_S),
    ("validate --preset 3d-405b", AT_ONCE_S),
    ("explain-config --preset fsdp-8b", AT_ONCE_S),
    ("explain-config --preset 3d-405b", AT_ONCE_S),
    ("explain-config --preset fsdp-8b training.seq_len", AT_ONCE_S),
    ("explain-config P101", AT_ONCE_S),
    ("explain-config strategies", AT_ONCE_S),
    ("import torchtitan.toml", AT_ONCE_S),
    (f"plan {_8B}", SEARCH_S),
    (f"init {_8B} --yes --output new.toml --force", SEARCH_S),
    ("plan --model 70B --gpu h100-80 --nodes 32 --seq-len 8192 --goal production", LARGE_S),
    ("plan --model 405B --gpu h100-80 --nodes 64 --seq-len 8192 --goal production", LARGE_S),
)
_RUN = '[cluster]\ngpu = "h100-80"\ngpus_per_node = 8\n[model]\nflavor = "8B"\n[training]\nseq_len = 8192\n'
_TORCHTITAN = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One command: its medians, and the exit code of every round."""

    command: str
    median_s: float
    median_cpu_s: float
    limit_s: float
    codes: tuple[int, ...]


def timed(command: str, limit_s: float, folder: Path) -> Timed:
    """Runs a command seven times, as a person would."""
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder), "COLUMNS": "100"}
    seconds, cpu_seconds, codes = [], [], []
    for _ in range(ROUNDS):
        began_s, began_cpu_s = time.perf_counter(), _cpu_s()
        done = subprocess.run(
            [*TITAN, *command.split()],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        seconds.append(time.perf_counter() - began_s)
        cpu_seconds.append(_cpu_s() - began_cpu_s)
        codes.append(done.returncode)
    return Timed(
        command=command,
        median_s=round(median(seconds), 3),
        median_cpu_s=round(median(cpu_seconds), 3),
        limit_s=limit_s,
        codes=tuple(codes),
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Prints a line for each command; 1 where one fails or takes too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    rows: list[Timed] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.joinpath("run.toml").write_text(_RUN, "utf-8")
        folder.joinpath("torchtitan.toml").write_text(_TORCHTITAN, "utf-8")
        for command, limit_s in COMMANDS:
            rows.append(each := timed(command, limit_s, folder))
            verdict = "FAILED" if any(each.codes) else "TOO SLOW" if each.median_cpu_s >= limit_s else ""
            figures = f"{each.median_s:6.3f} s, {each.median_cpu_s:6.3f} s of a CPU, of {limit_s} s"
            print(f"titan {command:64} {figures}  {verdict}", flush=True)
    if asked.output is not None:
        asked.output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")
    return int(any(any(row.codes) or row.median_cpu_s >= row.limit_s for row in rows))


if __name__ == "__main__":
    sys.exit(main())
