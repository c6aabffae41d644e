"""The columns of the table of ranks: what stands in each, how wide it is, and which of them a width takes.

Knows rows of a Frame by their keys. Does not know which rows are shown (panels_ranks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from titancli import charts, figures
from titancli.monitor.screen.panels_ink import BAD, DOUBTFUL, FAINT, PLAIN, Ink, Piece, bar, cut, padded
from titancli.report import printable

Row: TypeAlias = dict[str, Any]
GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: `value` is the figure of a row, `said` its words; `text` stands in the place of both."""

    key: str
    head: str
    width: int
    value: Callable[[Row], float | None] = lambda _: None
    said: Callable[[float], str] = figures.percent
    text: Callable[[Row], str] | None = None
    tint: Callable[[float], str] = lambda _: PLAIN
    is_left: bool = False
    is_bar: bool = False

    def cell(self, row: Row, ink: Ink) -> Piece:
        """What stands in it of a row, and its tint."""
        if self.text is not None:
            return self.fitted(self.text(row) or figures.NOT_KNOWN, ink), PLAIN
        value = self.value(row)
        return (
            (self.fitted("" if self.is_bar else figures.NOT_KNOWN, ink), FAINT)
            if value is None
            else (self.figure(value, ink), self.tint(value))
        )

    def figure(self, value: float, ink: Ink) -> str:
        """A figure in the width of this column: percent of a bar, or in words."""
        return self.fitted(bar(value, 100.0, self.width, ink) if self.is_bar else self.said(value), ink)

    def fitted(self, text: str, ink: Ink) -> str:
        """A text in the width of the column."""
        return padded(cut(text, self.width, ink), self.width, right=not self.is_left)


def _cause(name: str) -> Callable[[Row], float | None]:
    return lambda row: (row.get("idle") or {}).get(name)


def share_pct(row: Row) -> float | None:
    """How full a rank's memory is."""
    used, capacity = row["used_bytes"], row["capacity_bytes"]
    return None if used is None or not capacity else 100 * used / capacity


def planned_bytes(row: Row) -> int | None:
    """What a rank was planned to use: what its allocator holds, where the plan has it, as that is what it uses."""
    reserved: int | None = row.get("planned_reserved_bytes")
    return row["planned_bytes"] if reserved is None else reserved


def over_plan_pct(row: Row) -> float | None:
    """How much more memory a rank uses than was planned."""
    used, planned = row["used_bytes"], planned_bytes(row)
    return None if used is None or not planned else 100 * (used / planned - 1)


def _whole(value: float) -> str:
    return f"{value:.0f} %"


def _short(value: float) -> str:
    return f"{value:.0f} %" if value >= 99.95 else f"{value:.1f} %"


def _apart(value: float) -> str:
    return f"{value:+.1f} %" if abs(value) < 999 else f"{value / 100 + 1:,.0f} x"


def _fullness_tint(value: float) -> str:
    return BAD if value >= 95 else DOUBTFUL if value >= 90 else PLAIN


def _behind_tint(value: float) -> str:
    return BAD if value >= 15 else DOUBTFUL if value >= 5 else PLAIN


def most_idle(row: Row) -> str:
    """The largest cause of a rank's idle time: `tp 9.1 %`."""
    causes = {name: value for name, value in (row.get("idle") or {}).items() if name != "exposed_comm"}
    causes |= row.get("exposed_comm_by_axis") or {}
    if not row.get("exposed_comm_by_axis") and (row.get("idle") or {}).get("exposed_comm") is not None:
        causes["comm"] = row["idle"]["exposed_comm"]
    known = {name: value for name, value in causes.items() if value}
    name = max(known, key=lambda cause: known[cause], default="")
    return f"{name} {_short(known[name])}" if name else ""


def _device(row: Row) -> str:
    return printable((row["gpu"] or row["host"] or "").removeprefix("NVIDIA ")) or figures.not_known("not heard of")


def _column(key: str, head: str, width: int, **more: Any) -> Column:
    """A column of a text, or of a figure that stands in rows under its key."""
    value = {} if "text" in more else {"value": lambda row: row.get(key)}
    return Column(key=key, head=head, width=width, **(value | more))


COLUMNS: tuple[Column, ...] = (
    _column("rank", "rank", 5, text=lambda row: str(row["rank"])),
    _column("stage", "stage", 5, text=lambda row: "" if row["stage"] is None else str(row["stage"])),
    _column("host", "host", 12, text=lambda row: printable(row["host"] or ""), is_left=True),
    _column("gpu", "device", 14, text=_device, is_left=True),
    _column("used_bytes", "memory", 9, said=figures.memory),
    _column("share", "full", 6, value=share_pct, said=_short, tint=_fullness_tint),
    _column("bar", "", 8, value=share_pct, tint=_fullness_tint, is_left=True, is_bar=True),
    _column("capacity_bytes", "of", 9, said=figures.memory),
    _column("planned_bytes", "planned", 9, value=planned_bytes, said=figures.memory),
    _column("over", "to plan", 8, value=over_plan_pct, said=_apart),
    _column("sm_pct", "SM", 5, said=_whole),
    _column("tensor_pct", "tensor", 6, said=_whole),
    _column("dram_pct", "DRAM", 5, said=_whole),
    _column("link_pct", "NVLink", 6, said=_whole),
    _column("pcie_pct", "PCIe", 5, said=_whole),
    _column("network_pct", "net", 5, said=_whole),
    _column("power_w", "power", 6, said=lambda watts: f"{watts:.0f} W"),
    _column("cpu_pct", "CPU", 6, said=_whole),
    _column("own_s", "own time", 8, said=charts.seconds),
    _column("behind_pct", "behind", 7, said=_apart, tint=_behind_tint),
    _column("idle_pct", "idle", 6, said=_short),
    _column("most_idle", "most of it", 14, text=most_idle, is_left=True),
    _column("idle.data", "data", 6, value=_cause("data"), said=_short),
    _column("idle.host", "slow host", 9, value=_cause("host"), said=_short),
    _column("idle.exposed_comm", "comm", 6, value=_cause("exposed_comm"), said=_short),
    _column("idle.bubble", "bubble", 6, value=_cause("bubble"), said=_short),
    _column("idle.other", "other", 6, value=_cause("other"), said=_short),
)
"""Every column, from left to right."""
_CAUSES = ("idle.data", "idle.host", "idle.exposed_comm", "idle.bubble", "idle.other")
_ON_GPUS = (
    *("rank", "used_bytes", "share", "sm_pct", "idle_pct", "behind_pct", "over", "link_pct", "tensor_pct", "dram_pct"),
    *("most_idle", "pcie_pct", "network_pct", "own_s", "bar", "planned_bytes", "host", "gpu", "stage", "cpu_pct"),
    *("power_w", "capacity_bytes", *_CAUSES),
)
_ON_A_CPU = (
    *("rank", "used_bytes", "cpu_pct", "planned_bytes", "idle_pct", "behind_pct", "share", "most_idle", "own_s"),
    *("network_pct", "host", "stage", "bar", "capacity_bytes", *_CAUSES),
)
"""What has a place first, where there is not enough room for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The columns that are shown; heads of those without any figure by the reason, and of those that lack some.

    `partly` is by whose figures are missing (`rank 3`, `12 ranks`) and the reason.
    """

    columns: tuple[Column, ...]
    unknown: dict[str, tuple[str, ...]]
    partly: dict[tuple[str, str], tuple[str, ...]]


def chosen(rows: Sequence[Row], width: int, *, on_cpu: bool) -> Chosen:
    """The most important columns that a width takes; those that no row has a figure for are named apart."""
    by_key = {column.key: column for column in COLUMNS}
    possible = [by_key[key] for key in (_ON_A_CPU if on_cpu else _ON_GPUS)]
    known = [column for column in possible if column.key == "rank" or any(_knows(column, row) for row in rows)]
    taken: list[Column] = []
    left = width + GAP
    for column in known:
        size = GAP + column.width
        if size <= left or not taken:
            taken.append(column)
            left -= size
    return Chosen(
        columns=tuple(column for column in COLUMNS if column in taken),
        unknown=_unknown([column for column in possible if column not in known], rows),
        partly=_partly(taken, rows),
    )


def _knows(column: Column, row: Row) -> bool:
    if column.text is None:
        return column.value(row) is not None
    text = column.text(row)
    return bool(text) and not text.startswith(figures.NOT_KNOWN)


def _unknown(columns: Sequence[Column], rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Heads of columns without a figure, by the reason that rows give: meters, and idle time by its causes."""
    found: dict[str, list[str]] = {}
    for column in columns:
        if column.key.endswith("_pct") or column.key in ("power_w", "used_bytes"):
            found.setdefault(_reason(column.key, rows), []).append(column.head)
    return {reason: tuple(heads) for reason, heads in found.items()}


def _partly(columns: Sequence[Column], rows: Sequence[Row]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Heads of columns in which some rows have no figure, by whose it is and the reason that they give."""
    found: dict[tuple[str, str], list[str]] = {}
    for column in columns:
        whose: dict[str, list[int]] = {}
        for row in rows:
            reason = (row.get("reasons") or {}).get(column.key)
            if reason and column.value(row) is None:
                whose.setdefault(printable(str(reason)), []).append(row["rank"])
        for reason, ranks in whose.items():
            who = f"rank {ranks[0]}" if len(ranks) == 1 else figures.many(len(ranks), "rank")
            found.setdefault((who, reason), []).append(column.head)
    return {key: tuple(heads) for key, heads in found.items()}


def _reason(key: str, rows: Sequence[Row]) -> str:
    """Why no row has a figure: what most of them say."""
    if key in ("idle_pct", "behind_pct"):
        stages = [row["stage"] for row in rows if row["idle_pct"] is not None]
        if len(set(stages)) < len(stages):
            return "no step is profiled since the run was started again"
        return "no other rank of a stage to compare with" if stages else "no step is profiled yet"
    told = [str(reason) for row in rows if (reason := (row.get("reasons") or {}).get(key))]
    return printable(max(set(told), key=lambda reason: (told.count(reason), reason))) if told else "no rank has told it"
