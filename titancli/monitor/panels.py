"""A frame on the screen: panels for a person, or one plain line.

Knows how figures look. Does not compute any: what it shows stands in the Frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from titancli import figures
from titancli.monitor.follow import ENDED
from titancli.monitor.frame import Frame
from titancli.report import printable, speed_unit

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

_BARS = "▁▂▃▄▅▆▇█"
_TINTS = {"finished": "green", "running": "cyan", "starting": "cyan", "interrupted": "yellow"}
_MOST_ROWS = 16
# What the system counts of a process, and no plan does.
_WHOLE = "memory: of the whole process, Python and torch with it; planned: of the training in it"


def panels(frame: Frame) -> Group:
    """The frame as panels: the run, alerts where there are any, and its ranks, which a low terminal may cut."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    tint = _TINTS.get(frame.state, "red")
    title = Text(printable(f"{frame.run} · {frame.state}"), style=f"bold {tint}")
    parts: list[RenderableType] = [Panel(_run_table(frame), title=title, title_align="left", border_style=tint)]
    if frame.alerts:
        alerts = Text(printable("\n".join(frame.alerts)), style="yellow")
        parts.append(
            Panel(alerts, title=Text("alerts", style="bold yellow"), title_align="left", border_style="yellow")
        )
    parts.append(Panel(_rank_table(frame), title=Text("ranks", style="bold"), title_align="left"))
    return Group(*parts)


def line(frame: Frame) -> str:
    """The frame as one plain line, for output that is not a terminal."""
    seen = frame.seen
    return "  ".join(
        (
            frame.state,
            f"step {progress(frame)}",
            f"loss {figures.loss(seen.loss)}",
            f"grad norm {figures.loss(seen.grad_norm)}",
            f"{figures.rate(seen.tokens_per_s_per_gpu)} {speed_unit(seen.gpu)}",
            f"memory {figures.memory(most_used_bytes(frame))}",
            f"left {figures.duration(frame.eta_s)}",
        )
    )


def progress(frame: Frame) -> str:
    """`12 of 200`; before the first step the phase, such as `n/a (build)`."""
    if frame.seen.step is None:
        return figures.not_known(frame.seen.phase or "none yet")
    return f"{frame.seen.step:,} of {frame.steps:,}" if frame.steps is not None else f"{frame.seen.step:,}"


def most_used_bytes(frame: Frame) -> int | None:
    """Memory of the rank that uses most; None where none said."""
    return max((row["used_bytes"] for row in frame.ranks if row["used_bytes"] is not None), default=None)


def curve(values: tuple[float, ...], width: int = 40) -> str:
    """The last values as small bars, the lowest at the bottom."""
    shown = values[-width:]
    if not shown:
        return ""
    low, span = min(shown), (max(shown) - min(shown)) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in shown)


def _run_table(frame: Frame) -> Table:
    seen = frame.seen
    no_mfu = "a CPU has no peak rate here" if seen.gpu == "cpu" else ""
    table = _grid()
    for label, value in (
        ("step", progress(frame)),
        ("loss", f"{figures.loss(seen.loss)}  {curve(seen.losses)}".rstrip()),
        ("grad norm", figures.loss(seen.grad_norm)),
        (speed_unit(seen.gpu), figures.rate(seen.tokens_per_s_per_gpu)),
        ("MFU", figures.percent(seen.mfu_pct, no_mfu)),
        ("time left", figures.duration(frame.eta_s)),
        *_kept(frame),
    ):
        table.add_row(label, value)
    return table


def _kept(frame: Frame) -> Iterator[tuple[str, str]]:
    """Rows of what a run keeps and how often it began; none where it keeps nothing and began once."""
    seen = frame.seen
    if seen.saving_step is not None:
        after = ", and has not come to its end" if frame.state in ENDED else ""
        yield "saving", f"step {seen.saving_step:,}{after}"
    if seen.saved_step is not None:
        yield "last save", f"step {seen.saved_step:,}, {figures.duration(frame.saved_s_ago)} ago"
    if seen.starts > 1:
        after = "" if seen.resumed_step is None else f", the last time after step {seen.resumed_step:,}"
        yield "started", f"{seen.starts} times{after}"


def _grid() -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _rank_table(frame: Frame) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, expand=False)
    for name in ("rank", "device", "memory", "of", "planned", "SM", "link", "idle"):
        table.add_column(name, justify="left" if name == "device" else "right", overflow="fold")
    rows, notes = frame.ranks, [_WHOLE] if frame.seen.gpu == "cpu" else []
    if len(rows) > _MOST_ROWS:
        fullest = sorted(rows, key=lambda row: -(row["used_bytes"] or 0))[:_MOST_ROWS]
        rows = tuple(sorted(fullest, key=lambda row: int(row["rank"])))
        notes.append(f"the {_MOST_ROWS} fullest of {len(frame.ranks):,} ranks; --json has all")
    table.caption, table.caption_justify = "\n".join(notes) or None, "left"
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(row["rank"]),
        printable(row["gpu"] or row["host"] or "") or figures.not_known("not heard of"),
        figures.memory(row["used_bytes"]),
        figures.memory(row["capacity_bytes"]),
        figures.memory(row["planned_bytes"]),
        figures.percent(row["sm_pct"]),
        figures.percent(row["link_pct"]),
        figures.percent(row["idle_pct"]),
    )
