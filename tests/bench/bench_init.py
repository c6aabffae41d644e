"""Every answer of `titan init`: each file that it writes validates, or it says in numbers what would be needed.

Three models, each goal, 1 to 512 GPUs of each kind in the table, every cell in a child of one process that has
imported titan. `python tests/bench/bench_init.py` prints what is wrong, and exits 1 where anything is;
`--output tests/bench/init.json` keeps counts, failures and seconds. Takes some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

from engine.config import GpuName
from engine.hardware import GPUS
from engine.planner.search import GOALS
from titancli.dispatch import run_command_line

MODELS = ("8B", "70B", "405B")
COUNTS = (1, 2, 8, 64, 512)
KINDS: tuple[str, ...] = tuple(kind for kind in get_args(GpuName) if kind != "auto")
_USUAL_NODE = 8
# Cells of one child: plans are remembered, and those of hundreds of searches would fill the memory.
_CELLS_OF_A_CHILD = 10

Verdict = Literal["written", "refused", "WRONG"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One set of answers."""

    model: str
    gpu: str
    gpus: int
    goal: str

    @property
    def flags(self) -> list[str]:
        """As flags of `titan init`; more GPUs than a node has are nodes of the usual size."""
        node = GPUS[self.gpu].usual_gpus_per_node if self.gpu in GPUS else _USUAL_NODE
        a_node = min(node, self.gpus)
        asked = {"model": self.model, "gpu": self.gpu, "nodes": self.gpus // a_node, "gpus-per-node": a_node}
        return [word for name, value in (asked | {"goal": self.goal}).items() for word in (f"--{name}", str(value))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of a cell; `said` is what is wrong, or what would be needed."""

    cell: Cell
    verdict: Verdict
    seconds: float
    said: str


def judged(cell: Cell) -> Judged:
    """Asks `titan init` for a file in an empty folder, and `titan validate` about what it wrote."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        began_s = time.process_time()
        code, _, err = _ran("init", *cell.flags, "--yes", "--output", "run.toml")
        seconds = round(time.process_time() - began_s, 2)
        written = Path("run.toml")
        if code == 0 and written.exists():
            verdict, said = _validated(written)
        elif code == 3 and not any(Path().iterdir()):
            needs = re.search(r"fix: .*\d.*", err)
            verdict, said = ("refused", needs[0]) if needs else ("WRONG", f"exit 3 without what is needed: {err}")
        else:
            verdict, said = "WRONG", f"exit {code}, files {sorted(map(str, Path().iterdir()))}: {err}"
        return Judged(cell=cell, verdict=verdict, seconds=seconds, said=said)


def cells() -> Iterator[Cell]:
    """All of them, the cheapest first."""
    for gpus, model, gpu, goal in product(COUNTS, MODELS, KINDS, GOALS):
        yield Cell(model=model, gpu=gpu, gpus=gpus, goal=goal)


def summary(rows: list[Judged]) -> dict[str, Any]:
    """Counts, what went wrong, and seconds by size."""
    seconds = {
        f"{model} on {gpus}": [row.seconds for row in rows if (row.cell.model, row.cell.gpus) == (model, gpus)]
        for model, gpus in product(MODELS, COUNTS)
    }
    return {
        "cells": len(rows),
        "verdicts": dict(Counter(row.verdict for row in rows)),
        "wrong": [asdict(row) for row in rows if row.verdict == "WRONG"],
        "seconds": {name: {"median": median(some), "most": max(some)} for name, some in seconds.items() if some},
        "refused": [f"{' '.join(row.cell.flags)}: {row.said}" for row in rows if row.verdict == "refused"],
    }


def _validated(written: Path) -> tuple[Verdict, str]:
    code, out, err = _ran("validate", str(written), "--json")
    if code == 0 and json.loads(out)["ok"]:
        return "written", ""
    return "WRONG", f"its file does not validate, exit {code}: {err} {out[:2000]}"


def _ran(*words: str) -> tuple[int, str, str]:
    """Exit code and what was written; whatever else comes out of a command is its fault too."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run_command_line(words)
        except Exception as fault:  # noqa: BLE001  # a fault is one more verdict
            code = -1
            err.write(f"{type(fault).__name__}: {fault}")
    return code, out.getvalue(), err.getvalue()


def main() -> int:
    """Judges every cell; 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--gpu", choices=KINDS, action="append", help="only this kind")
    parser.add_argument("--gpus", type=int, action="append", help="only so many")
    asked = parser.parse_args()
    chosen = [
        cell
        for cell in cells()
        if (not asked.gpu or cell.gpu in asked.gpu) and (not asked.gpus or cell.gpus in asked.gpus)
    ]
    rows: list[Judged] = []
    with tempfile.TemporaryDirectory() as nowhere:
        os.environ["XDG_CONFIG_HOME"] = nowhere
        with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=_CELLS_OF_A_CHILD) as pool:
            for row in pool.imap(judged, chosen):
                rows.append(row)
                if row.verdict == "WRONG":
                    print(" ".join(row.cell.flags), row.said[:400], sep="\n    ", flush=True)
    told = summary(rows)
    print(json.dumps({name: told[name] for name in ("cells", "verdicts", "seconds")}, indent=1))
    if asked.output is not None:
        asked.output.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    return int(bool(told["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
