"""The pictures of the pages: which command each shows, and how what it writes becomes an SVG.

Knows command lines, keys that are pressed, and lines that differ from run to run, which are left out. Does not know
terminals (screen) nor recorded runs (recorded_runs).
"""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from titancli.pages import recorded_runs
from titancli.pages.screen import played

if TYPE_CHECKING:
    from rich.text import Text

_MISTAKES = """\
[model]
flavor = "8B"

[cluster]
gpu = "h100-80"
gpus_per_node = 8

[train]
seqlen = 4096

[compile]
enable = true

[parallelism]
tensor_parallel_degree = 16
pipeline_parallel_schedule = "1f1b"
"""
# The seconds of a search are not those of the next one.
_TIMED = re.compile(r"layouts judged in")
ENTER = "\r"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A command line, the files it finds, and the keys that are pressed where it asks; `shows` is the caption.

    `screen` draws what stands on a whole screen of so many columns and `rows`, where a command goes on.
    """

    name: str
    command: str
    words: tuple[str, ...]
    shows: str
    files: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    columns: int = 100
    rows: int = 0
    screen: Callable[[int, int], Text] | None = None
    takes_seconds: bool = False

    @property
    def line(self) -> str:
        """The command line as it is typed."""
        return f"titan {' '.join(self.words)}"


PICTURES = (
    Picture(
        name="init",
        command="init",
        words=("init", "--gpu", "h100-80"),
        keys=(ENTER, ENTER, ENTER, ENTER),
        shows="A question of the wizard: what is proposed, what else there is, and why.",
    ),
    Picture(
        name="init-plans",
        command="init",
        words=("init", "--model", "8B", "--gpu", "h100-80", "--seq-len", "8192", "--goal", "production"),
        keys=(ENTER, ENTER),
        shows="The ranked plans, why others lost, and which to write.",
        takes_seconds=True,
    ),
    Picture(
        name="plan",
        command="plan",
        words=("plan", "--model", "70B", "--gpu", "h100-80", "--nodes", "8", "--seq-len", "8192", "--top", "3"),
        shows="The best layouts of 70B on 64 GPUs, what the winner holds and takes, and why others lost.",
        takes_seconds=True,
    ),
    Picture(
        name="validate-errors",
        command="validate",
        words=("validate", "run.toml"),
        files={"run.toml": _MISTAKES},
        shows="All mistakes at once, each with its place and the way out.",
    ),
    Picture(
        name="validate",
        command="validate",
        words=("validate", "--preset", "fsdp-8b"),
        shows="What a config means in numbers.",
    ),
    Picture(
        name="explain-config",
        command="explain-config",
        words=("explain-config", "--preset", "3d-405b"),
        shows="A whole config: its mesh, its memory and time by key, and what was left open.",
    ),
    Picture(
        name="explain-config-key",
        command="explain-config",
        words=("explain-config", "--preset", "3d-405b", "parallelism.tensor_parallel_degree"),
        shows="One key of it.",
    ),
    Picture(
        name="monitor",
        command="monitor",
        words=("monitor", recorded_runs.REAL.name),
        screen=recorded_runs.real,
        columns=120,
        rows=27,
        shows="A run of 16 layers of the 8B shape on one H200, as it went.",
    ),
    Picture(
        name="monitor-512",
        command="monitor",
        words=("monitor", recorded_runs.MANY),
        screen=recorded_runs.many,
        columns=120,
        rows=40,
        shows="512 ranks of 405B with one slow node, as they would be seen: their events are the plan's own seconds.",
        takes_seconds=True,
    ),
)


def drawn(picture: Picture) -> str:
    """The picture as SVG, of what the command writes now."""
    from rich.console import Console

    told = transcript(picture)
    console = Console(
        record=True, width=picture.columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(told, soft_wrap=True)
    svg = console.export_svg(title=picture.line, unique_id=f"titan-{picture.name}")
    # A font of another host would be asked for by whoever looks; without it the reader's own stands there.
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def transcript(picture: Picture) -> Text:
    """What stands on the screen after the command, without the lines that no other run would show."""
    if picture.screen is not None:
        return picture.screen(picture.columns, picture.rows)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in picture.files.items():
            (Path(folder) / name).write_text(text, "utf-8")
        told = played(picture.words, folder=Path(folder), columns=picture.columns, keys=picture.keys)
    told.expand_tabs()
    kept = [line for line in told.split("\n", allow_blank=True) if not _TIMED.search(line.plain)]
    return type(told)("\n").join(kept)
