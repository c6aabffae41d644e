"""What `titan monitor` shows of recorded runs, as if they went on.

Knows which runs there are: one as it was on a GPU, and one of 512 ranks as the tests write it. Both stand with the
tests of the repository. Does not know how a screen becomes a picture (pictures).
"""

from __future__ import annotations

import io
import json
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titancli.pages import FOLDER

if TYPE_CHECKING:
    from rich.text import Text

_TESTS = FOLDER.parents[1] / "tests" / "titancli" / "monitor"
REAL = _TESTS / "recorded" / "h200-16-layers"
"""16 layers of the 8B shape on one H200."""
# The processes of a run on this machine would be looked for, and not be found.
_ELSEWHERE = "gpu-node"
_WRITES = _TESTS / "recorded.py"
MANY = "llama-405b"
# A node of eight GPUs whose clocks are low, in the third pipeline stage.
_SLOW, _SLOWER = range(136, 144), 0.12


def real(columns: int, rows: int) -> Text:
    """The screen of the run on a GPU, when four fifths of its steps were done."""
    events = [json.loads(line) for line in (REAL / "events" / "rank-00000.jsonl").read_text("utf-8").splitlines()]
    steps = [place for place, event in enumerate(events) if event["kind"] == "step"]
    upto = steps[len(steps) * 4 // 5 - 1] + 1
    kept = [event | {"host": _ELSEWHERE} if "host" in event else event for event in events[:upto]]

    def write(folder: Path) -> Path:
        run = folder / REAL.name
        (run / "events").mkdir(parents=True)
        for name in ("config.toml", "plan.json"):
            (run / name).write_bytes((REAL / name).read_bytes())
        lines = "".join(json.dumps(event) + "\n" for event in kept)
        (run / "events" / "rank-00000.jsonl").write_text(lines, "utf-8")
        return run

    return _screen(write, columns, rows)


def many(columns: int, rows: int) -> Text:
    """The screen of 512 ranks, eight of which are slower than planned."""
    recorded = runpy.run_path(str(_WRITES))["recorded"]

    def late(rank: int, _step: int, parts: Any) -> Any:
        return parts.plus(_SLOWER * parts.compute_s, "compute_s") if rank in _SLOW else parts

    def write(folder: Path) -> Path:
        run: Path = recorded("3d-405b", steps=400, ends=None, change=late).write(folder, MANY)
        return run

    return _screen(write, columns, rows)


def _screen(write: Callable[[Path], Path], columns: int, rows: int) -> Text:
    """What stands on a screen a second after rank 0 wrote last."""
    from rich.console import Console
    from rich.text import Text

    from titancli.monitor.screen.drawing import drawing
    from titancli.monitor.screen.panels_ink import SIGNS
    from titancli.monitor.screen.view import View
    from titancli.monitor.watched import Watched

    with tempfile.TemporaryDirectory() as folder:
        run = write(Path(folder))
        last = (run / "events" / "rank-00000.jsonl").read_text("utf-8").splitlines()[-1]
        shown = Watched(run, now=json.loads(last)["time"] + 1.0).look()
    told = io.StringIO()
    console = Console(file=told, width=columns, height=rows, force_terminal=True, color_system="standard")
    console.print(drawing(shown, columns, rows, view=View(), ink=SIGNS).picture, end="")
    return Text.from_ansi(told.getvalue().strip("\n"))
