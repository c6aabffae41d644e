"""Whole screens of recorded runs, kept as text in `golden/`.

`REWRITE_GOLDEN=1 python -m pytest tests/titancli/monitor/screen/test_golden.py` writes them anew: look at what differs.
`golden/eight` are eight ranks of which one is slow, written by `recorded`; `../recorded/` holds real runs.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from frames import screen

from engine.events import read_new
from titancli.monitor.frame import Frame
from titancli.monitor.screen.panels_ink import ASCII, SIGNS
from titancli.monitor.screen.view import View
from titancli.monitor.watched import Watched

HERE = Path(__file__).parent
EIGHT = HERE / "golden" / "eight"
H200 = HERE.parent / "recorded" / "h200-16-layers"
SCREENS = [
    ("eight-60x15", EIGHT, View()),
    ("eight-80x24", EIGHT, View()),
    ("eight-120x40", EIGHT, View()),
    ("eight-200x60", EIGHT, View()),
    ("eight-alerts-60x15", EIGHT, View(shows="alerts")),
    ("eight-help-80x24", EIGHT, View(shows="help")),
    ("eight-ascii-80x24", EIGHT, View(order="memory", is_reversed=True)),
    ("h200-60x15", H200, View()),
    ("h200-80x24", H200, View()),
    ("h200-120x40", H200, View()),
]


@cache
def look(run: Path) -> Frame:
    """The run a second after its rank 0 wrote last."""
    events, _ = read_new(run / "events" / "rank-00000.jsonl")
    return Watched(run, now=events[-1]["time"] + 1.0).look()


@pytest.mark.parametrize(("name", "run", "view"), SCREENS, ids=[name for name, _, _ in SCREENS])
def test_screen_is_what_it_was(name: str, run: Path, view: View) -> None:
    columns, rows = map(int, name.rpartition("-")[2].split("x"))
    lines = screen(look(run), columns, rows, view=view, ink=ASCII if "ascii" in name else SIGNS)
    told = "\n".join(line.rstrip() for line in lines) + "\n"
    kept = HERE / "golden" / f"{name}.txt"
    if os.environ.get("REWRITE_GOLDEN"):
        kept.write_text(told, "utf-8")
    assert told == kept.read_text("utf-8"), f"see the head of {Path(__file__).name}"
