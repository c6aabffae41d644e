"""How findings are shown to a person, and what all output shares: colour, width and layout on the screen.

Does not judge: findings come from the sources and the rules. Does not know how a plan is laid out (plan_text).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from engine.errors import Finding

if TYPE_CHECKING:
    from rich.console import Console

    from engine.planner.mesh import Mesh
    from engine.planner.plan import Plan

_MOST_CHARACTERS = 1000
_MOST_BYTES = 4 << 20
# All but the tab and the end of a line; then what ends a line elsewhere, or turns the order of letters on it around.
_CONTROL = dict.fromkeys(
    (*range(9), *range(11, 32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A)),
    "\N{REPLACEMENT CHARACTER}",
)
# The space between a number and its unit; in its place a letter that no line is broken at.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGT]?i?B|s|ms|min|h|d|k|M|T|columns?)(?:[\s,;:.)]|$))")
_UNBROKEN = "\N{NO-BREAK SPACE}"
RED, YELLOW, GREEN, DIM, BOLD = "31;1", "33;1", "32;1", "2", "1"


def takes_colour(stream: TextIO) -> bool:
    """Whether colour codes are welcome on a stream: a terminal that is not dumb, and NO_COLOR not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_screen(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which the cursor can be moved back."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def console(stream: TextIO) -> Console:
    """A rich console that adds no markup or colour of its own, and none at all where none is welcome."""
    from rich.console import Console

    # With `no_color` alone, rich goes on writing bold and faint.
    system: Literal["auto"] | None = "auto" if takes_colour(stream) else None
    return Console(file=stream, highlight=False, markup=False, emoji=False, color_system=system)


def width_of(stream: TextIO) -> int:
    """Columns to write in: those of a terminal (40 to 120), else 100."""
    return min(120, max(40, shutil.get_terminal_size().columns)) if stream.isatty() else 100


def error(rule: str, message: str, fix: str = "", *, key: str = "", source: str | None = None) -> Finding:
    """An error finding of the command line itself (families U: usage, L: launch, H: hardware here)."""
    return Finding(rule=rule, severity="error", key=key, message=message, fix=fix, source=source)


def say_findings(findings: Iterable[Finding], stream: TextIO | None = None) -> None:
    """Writes findings in the form of the contract, each with the line of the file it points at (default: stderr)."""
    stream = stream or sys.stderr
    colour, width = takes_colour(stream), width_of(stream)
    for finding in findings:
        head, *rest = [shortened(printable(line)) for line in str(finding).split("\n")]
        label, message = head.split(": ", 1)
        excerpt = source_line(finding)
        where = 1 if rest and rest[0].startswith("  --> ") else 0
        if excerpt is not None:
            rest.insert(where, f"   | {shortened(printable(excerpt), width - 5)}")
        if stream.isatty():
            if finding.key and (finding.file or finding.source) and len(rest[0]) > width:
                # The key under the place it was written in; neither is cut.
                rest[0] = "\n      ".join(rest[0].rsplit("  ", 1))
            message = "\n".join(wrapped(f"{label}: {message}", width, indent=4)).removeprefix(f"{label}: ")
            rest = ["\n".join(wrapped(line, width, indent=7)) if line.startswith("  fix: ") else line for line in rest]
        tint = RED if finding.severity == "error" else YELLOW
        lines = [f"{paint(label, tint, colour)}: {message}", *rest]
        stream.write("\n".join(lines) + "\n")
    stream.flush()


def printable(text: str) -> str:
    """Text of a file or a run as it may be shown: what would move the cursor or ring a bell is made visible."""
    return text.translate(_CONTROL)


def shortened(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Text with its middle left out where it is longer than `most`."""
    half = most // 2 - 1
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def source_line(finding: Finding) -> str | None:
    """The line that a finding points at, as it stands in the file or preset; None where it points at none."""
    if finding.file is None or finding.line is None:
        return None
    for text in _texts(finding.file):
        lines = text.splitlines()
        line = lines[finding.line - 1].strip() if finding.line <= len(lines) else ""
        # A file of the user's may be called like a preset: only a line that names the key is the one meant.
        if line and finding.key.rpartition(".")[2] in line:
            return line
    return None


def _texts(file: str) -> Iterator[str]:
    """What the file name of a finding may mean: a file, or a preset by its place in the package."""
    # As much as a config may be long: a finding can point into a corpus too, which memory may not hold.
    with contextlib.suppress(OSError), Path(file).open("rb") as beginning:
        yield beginning.read(_MOST_BYTES).decode("utf-8", errors="replace")
    from engine.sources import preset_names, preset_text

    name = Path(file).stem
    if file == f"presets/{name}.toml" and name in preset_names():
        yield preset_text(name)


def say(text: str, stream: TextIO | None = None, *, tint: str = "") -> None:
    """Writes one line; `tint` is `good`, `bad`, `faint` or empty."""
    stream = stream or sys.stdout
    code = {"good": GREEN, "bad": RED, "faint": DIM, "": ""}[tint]
    stream.write(paint(printable(text), code, bool(code) and takes_colour(stream)) + "\n")
    stream.flush()


def lose(stream: TextIO) -> None:
    """From here on, a stream goes nowhere: whoever read it is gone, and Python must not stumble over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def layout(plan: Plan) -> str:
    """The mesh in short: its axes of more than one rank, as in `FSDP 8 x TP 8 x PP 8`; `one rank` without any."""
    return axes(plan.mesh)


def axes(mesh: Mesh) -> str:
    """The axes of more than one rank, as `layout` has them."""
    degrees = (
        ("replicate", mesh.dp_replicate),
        ("FSDP", mesh.dp_shard),
        ("CP", mesh.cp),
        ("TP", mesh.tp),
        ("PP", mesh.pp),
    )
    return " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1) or "one rank"


def wrapped_layout(plan: Plan, width: int) -> list[str]:
    """`layout` in lines of `width`; an axis and its degree stay on one line."""
    text = layout(plan).replace(" ", _UNBROKEN).replace(f"{_UNBROKEN}x{_UNBROKEN}", f" x{_UNBROKEN}")
    return [line.replace(_UNBROKEN, " ") for line in textwrap.wrap(text, width, break_long_words=False)]


def devices(gpu: str, count: int) -> str:
    """`8 x h200`, or `2 processes on cpu`."""
    if gpu == "cpu":
        return f"{count} process{'es' if count != 1 else ''} on cpu"
    return f"{count} x {gpu}"


def speed_unit(gpu: str | None) -> str:
    """What a speed is counted in: `tokens/s/GPU`, or `tokens/s/process` where processors train."""
    return "tokens/s/process" if gpu == "cpu" else "tokens/s/GPU"


def hanging(label: str, text: str, width: int) -> list[str]:
    """Text behind a label, in lines of `width` that all begin where it does."""
    return wrapped(label + text, width, indent=len(label)) or [label]


def wrapped(text: str, width: int, *, indent: int) -> list[str]:
    """Text in lines of `width`, all but the first indented; a number and its unit stay on one line."""
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(_UNBROKEN, text),
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_UNBROKEN, " ") for line in lines]


def paint(text: str, code: str, on: bool) -> str:
    """Text in a colour (an ANSI code such as BOLD), where colours are on."""
    return f"\x1b[{code}m{text}\x1b[0m" if on and code else text
