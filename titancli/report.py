"""How findings and plans are shown to a person: the one place that words them.

Knows colour, width and layout on the screen. Does not judge: findings come from the sources and
the rules, numbers from the Plan.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from engine.errors import Finding
from titancli import figures

if TYPE_CHECKING:
    from rich.console import Console

    from engine.features import Setting
    from engine.planner.plan import Plan, Stage

_MOST_CHARACTERS = 1000
# All but the tab and the end of a line.
_CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
_RED, _YELLOW, _GREEN, _DIM, _BOLD = "31;1", "33;1", "32;1", "2", "1"
_STATE_COLOURS = {"active": _GREEN, "inactive": _YELLOW, "rejected": _RED}


def takes_colour(stream: TextIO) -> bool:
    """Whether colour codes are welcome on a stream: a terminal that is not dumb, and NO_COLOR not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_screen(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which the cursor can be moved back."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def console(stream: TextIO) -> Console:
    """A rich console that adds no markup or colour of its own, and none at all where none is welcome."""
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False, no_color=not takes_colour(stream))


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
            message = textwrap.fill(message, width, initial_indent=" " * (len(label) + 2), subsequent_indent="    ")
            message = message.lstrip()
            rest = [
                textwrap.fill(line, width, subsequent_indent="       ") if line.startswith("  fix: ") else line
                for line in rest
            ]
        tint = _RED if finding.severity == "error" else _YELLOW
        lines = [f"{_paint(label, tint, colour)}: {message}", *rest]
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
    with contextlib.suppress(OSError):
        yield Path(file).read_text("utf-8", errors="replace")
    from engine.sources import preset_names, preset_text

    name = Path(file).stem
    if file == f"presets/{name}.toml" and name in preset_names():
        yield preset_text(name)


def say_plan(plan: Plan, settings: Sequence[Setting], stream: TextIO | None = None) -> None:
    """Writes the resolved plan: layout, batch, model, memory of each stage, and what became of each feature."""
    stream = stream or sys.stdout
    colour, width = takes_colour(stream), width_of(stream)
    lines = [_paint("plan", _BOLD, colour)]
    for name, value in _facts(plan):
        lines += _hanging(f"  {name:<14}", value, width)
    unit, unit_bytes = ("GiB", 1 << 30) if plan.memory.static_bytes >= 1 << 30 else ("MiB", 1 << 20)
    lines += ["", _paint(f"memory of one rank, in {unit}", _BOLD, colour), *_stage_table(plan, unit_bytes)]
    lines += _hanging("  ", _memory_note(plan), width)
    if settings:
        lines += ["", _paint("settings", _BOLD, colour)]
        for setting in settings:
            text = f"{setting.key}: {setting.reason}" if setting.reason else setting.key
            state = _paint(f"{setting.state:<9}", _STATE_COLOURS[setting.state], colour)
            first, *more = _hanging(" " * 12, text, width)
            lines += [f"  {state} {first[12:]}", *more]
    stream.write("\n".join(lines) + "\n")
    stream.flush()


def say(text: str, stream: TextIO | None = None, *, tint: str = "") -> None:
    """Writes one line; `tint` is `good`, `bad`, `faint` or empty."""
    stream = stream or sys.stdout
    code = {"good": _GREEN, "bad": _RED, "faint": _DIM, "": ""}[tint]
    stream.write(_paint(printable(text), code, bool(code) and takes_colour(stream)) + "\n")
    stream.flush()


def lose(stream: TextIO) -> None:
    """From here on, a stream goes nowhere: whoever read it is gone, and Python must not stumble over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def layout(plan: Plan) -> str:
    """The mesh in short: its axes of more than one rank, as in `FSDP 8 x TP 8 x PP 8`; `one rank` without any."""
    mesh = plan.mesh
    axes = (
        ("replicate", mesh.dp_replicate),
        ("FSDP", mesh.dp_shard),
        ("CP", mesh.cp),
        ("TP", mesh.tp),
        ("PP", mesh.pp),
    )
    return " x ".join(f"{name} {degree}" for name, degree in axes if degree > 1) or "one rank"


def devices(gpu: str, count: int) -> str:
    """`8 x h200`, or `2 processes on cpu`."""
    if gpu == "cpu":
        return f"{count} process{'es' if count != 1 else ''} on cpu"
    return f"{count} x {gpu}"


def _facts(plan: Plan) -> list[tuple[str, str]]:
    mesh = plan.mesh
    axes = (("pp", mesh.pp), ("dp_replicate", mesh.dp_replicate), ("dp_shard", mesh.dp_shard), ("cp", mesh.cp))
    unknown = "no model of time yet"
    return [
        ("runs on", devices(plan.gpu, plan.world_size)),
        ("mesh", " x ".join(f"{name} {degree}" for name, degree in (*axes, ("tp", mesh.tp)))),
        ("model", f"{plan.parameters:,} parameters, {plan.model.n_layers} layers"),
        (
            "batch",
            f"{plan.global_batch_size:,} sequences a step = {plan.local_batch_size} a data rank "
            f"x {mesh.data_ranks} data ranks x {plan.gradient_accumulation_steps} accumulation",
        ),
        ("microbatches", f"{plan.microbatches} of {plan.microbatch_size} in each accumulation step"),
        ("recompute", _recompute(plan)),
        ("tokens a step", f"{plan.tokens_per_step:,}"),
        ("step time", figures.duration(plan.time.step_s, unknown)),
        ("tokens/s/GPU", figures.rate(plan.tokens_per_s_per_gpu, unknown)),
    ]


def _recompute(plan: Plan) -> str:
    """What is computed again in backward."""
    recompute = plan.recompute
    match recompute.mode:
        case "selective" if recompute.every is not None:
            return f"selective: every layer of {recompute.every} in full"
        case "selective":
            return "selective: all but products, attention and sums over ranks"
        case "memory_budget":
            return f"memory budget: the compiler keeps {100 * (recompute.budget or 0):.0f} %"
        case mode:
            return mode


def _stage_table(plan: Plan, unit_bytes: int) -> list[str]:
    """One row for each group of equal pipeline ranks; fits 60 columns."""
    rows: list[tuple[str, ...]] = [("pp", "layers", "static", "activ.", "logits", "buffers", "peak")]
    for stages in _alike(plan.stages):
        stage = stages[0]
        memory = stage.memory
        parts = (memory.static_bytes, memory.activations_bytes, memory.logits_bytes, memory.communication_bytes)
        rows.append(
            (
                figures.ranges(tuple(each.pp_rank for each in stages)),
                figures.ranges(stage.layers) if len(stages) == 1 else f"{len(stage.layers)} each",
                *(figures.not_known() if part is None else f"{part / unit_bytes:.2f}" for part in parts),
                figures.not_known() if memory.peak_bytes is None else f"{memory.peak_bytes / unit_bytes:.2f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _alike(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Successive stages with equal numbers, together where there are many of them."""
    if len(stages) <= 16:
        return [[stage] for stage in stages]
    groups = groupby(stages, key=lambda stage: (len(stage.layers), stage.parameters, stage.memory))
    return [list(group) for _, group in groups]


def _memory_note(plan: Plan) -> str:
    """What `static` is, how full the fullest rank gets and when, and what its allocator holds."""
    memory = plan.memory
    parts = (memory.params_bytes, memory.grads_bytes, memory.optimizer_bytes)
    names = ("weights", "gradients", "optimizer states")
    text = "static: " + ", ".join(f"{name} {figures.memory(part)}" for name, part in zip(names, parts, strict=True))
    peak = memory.needed_bytes if memory.peak_bytes is None else memory.peak_bytes
    text += f"; peak {figures.memory(peak)} of {figures.memory(memory.capacity_bytes)}"
    text += f" ({100 * peak / memory.capacity_bytes:.1f} %), {memory.moment}" if memory.moment else ""
    if memory.reserved_bytes is not None:
        text += f"; the allocator holds {figures.memory(memory.reserved_bytes)}"
    return text + f": {({True: 'fits', False: 'does not fit', None: 'may fit'})[memory.fits]}"


def _hanging(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=label, subsequent_indent=" " * len(label), break_long_words=False
    ) or [label]


def _paint(text: str, code: str, on: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if on and code else text
