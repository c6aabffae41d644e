"""How far a run is and how well it goes: step, loss, speed against the plan, memory, checkpoints.

Knows the order of what matters, and how much of it a room takes. Does not compute: all stands in the Frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from titancli import charts, figures
from titancli.monitor.follow import ENDED
from titancli.monitor.frame import Frame
from titancli.monitor.screen.panels_columns import planned_bytes
from titancli.monitor.screen.panels_ink import (
    BAD,
    DOUBTFUL,
    FAINT,
    GOOD,
    PLAIN,
    STRONG,
    Ink,
    Line,
    chart,
    curve,
    cut_line,
    stretched,
    track,
    width_of,
)
from titancli.report import printable, speed_unit

_TINTS = {"finished": GOOD, "running": "cyan", "starting": "cyan", "interrupted": DOUBTFUL}
_LABEL_WIDTH = 10
_BETWEEN = 3
# Further from the plan than this, it is worth a colour.
_FAR_PCT = 10.0
_TALLEST_CHART = 8
_WIDEST_CURVE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that is said of a run: in full where it has a line of its own, in short beside others."""

    label: str
    full: Line
    short: Line | None = None


def tint_of(frame: Frame) -> str:
    """The colour of a run's state."""
    return _TINTS.get(frame.state, BAD)


def headline(frame: Frame, ink: Ink) -> str:
    """`name · running`, and what it is at where it is not training."""
    phase = frame.seen.phase if frame.state not in ENDED and frame.seen.phase not in (None, "train") else None
    said = [frame.run, frame.state, *([phase] if phase else [])]
    return printable(f" {ink.dot} ".join(said))


def run_lines(frame: Frame, width: int, ink: Ink, *, height: int | None = None) -> list[Line]:
    """The run in at most `height` lines: a line for each fact, else several in one, else the first ones."""
    first = [_way(frame, width, ink), _loss(frame, width, ink)]
    facts = list(_facts(frame))
    if height is None:
        return [*first, *_one_each(facts, width, ink)]
    lines = _one_each(facts, width, ink)
    spare = height - len(first) - len(lines)
    if spare < 0:
        lines = _flowing(facts, width, ink)[: max(0, height - len(first))]
    elif spare >= 2 and len(frame.seen.losses) > 1:
        first[1:] = _tall_loss(frame, width, ink, min(_TALLEST_CHART, spare + 1))
    return [*first, *lines][:height]


def short_lines(frame: Frame, width: int, ink: Ink) -> int:
    """Lines that the run takes where facts share them."""
    return 2 + len(_flowing(list(_facts(frame)), width, ink))


def progress(frame: Frame) -> str:
    """`12 of 200`; before the first step the phase, such as `n/a (build)`."""
    if frame.seen.step is None:
        return figures.not_known(frame.seen.phase or "none yet")
    return f"{frame.seen.step:,} of {frame.steps:,}" if frame.steps is not None else f"{frame.seen.step:,}"


def _way(frame: Frame, width: int, ink: Ink) -> Line:
    said: Line = ((_label("step"), FAINT), (printable(progress(frame)), STRONG))
    left = figures.duration(frame.eta_s)
    end = "" if frame.state in ENDED else f"left {left}" if frame.eta_s is not None else ""
    room = width - width_of(said) - 2
    if frame.seen.step is None or not frame.steps:
        return cut_line(said, width, ink)
    share = min(1.0, frame.seen.step / frame.steps)
    tail = f" {100 * share:.0f} %" + (f"  {end}" if end else "")
    length = room - len(tail)
    bar: Line = track(share, length, ink) if length >= 4 else ()
    return cut_line((*said, ("  ", PLAIN), *bar, (tail, PLAIN)), width, ink)


def _loss(frame: Frame, width: int, ink: Ink) -> Line:
    said: Line = ((_label("loss"), FAINT), (figures.loss(frame.seen.loss), STRONG), ("  ", PLAIN))
    room = min(_WIDEST_CURVE, width - width_of(said))
    return cut_line((*said, (curve(stretched(frame.seen.losses, room), room, ink), "cyan")), width, ink)


def _tall_loss(frame: Frame, width: int, ink: Ink, height: int) -> list[Line]:
    """The loss and its curve over several lines, with the highest and the lowest beside it."""
    seen = frame.seen
    head: Line = ((_label("loss"), FAINT), (figures.loss(seen.loss), STRONG))
    lead = _LABEL_WIDTH + 9
    room = max(1, min(_WIDEST_CURVE, width - lead))
    rows = chart(stretched(seen.losses, room), room, height, ink)
    said = {height - 1: f"{min(seen.losses):.4g}"}
    lines: list[Line] = []
    for number, row in enumerate(rows):
        label = head if number == 0 else ((" " * _LABEL_WIDTH, PLAIN), (said.get(number, ""), FAINT))
        lines.append((*label, (" " * max(1, lead - width_of(label)), PLAIN), (row, "cyan")))
    return lines


def _one_each(facts: Sequence[Fact], width: int, ink: Ink) -> list[Line]:
    return [cut_line(((_label(fact.label), FAINT), *fact.full), width, ink) for fact in facts]


def _flowing(facts: Sequence[Fact], width: int, ink: Ink) -> list[Line]:
    """Facts side by side, in as few lines as hold them."""
    lines: list[Line] = []
    for fact in facts:
        said: Line = ((f"{fact.label} ", FAINT), *(fact.short or fact.full))
        if lines and width_of(lines[-1]) + _BETWEEN + width_of(said) <= width:
            lines[-1] = (*lines[-1], (" " * _BETWEEN, PLAIN), *said)
        else:
            lines.append(cut_line(said, width, ink))
    return lines


def _label(name: str) -> str:
    return f"{name:<{_LABEL_WIDTH}}"


def _facts(frame: Frame) -> Iterator[Fact]:
    """What is said of a run, the most important first."""
    seen = frame.seen
    plan = seen.plan or {}
    yield _against(
        "speed", seen.tokens_per_s_per_gpu, plan.get("tokens_per_s_per_gpu"), figures.rate, speed_unit(seen.gpu)
    )
    yield _mfu(seen.mfu_pct, plan.get("mfu_pct"), "a CPU has no peak rate here" if seen.gpu == "cpu" else "")
    yield Fact(label="grad norm", full=((figures.loss(seen.grad_norm), PLAIN),))
    yield from _memory(frame)
    yield from _kept(frame)
    yield from _slowest(frame)
    planned_s = _of(plan, "time").get("step_s")
    yield _against("step time", seen.step_s, planned_s, charts.seconds, "", slow_is_more=True)
    yield Fact(label="lr", full=((figures.not_known() if seen.lr is None else f"{seen.lr:.2e}", PLAIN),))


def _against(
    label: str, value: float | None, planned: object, said: Any, unit: str, *, slow_is_more: bool = False
) -> Fact:
    """A figure beside the plan's."""
    text = figures.NOT_KNOWN if value is None else said(value)
    full: Line = ((text, STRONG if label == "speed" else PLAIN), (f" {unit}" if unit else "", PLAIN))
    if value is None or not isinstance(planned, (int, float)) or planned <= 0:
        return Fact(label=label, full=full)
    apart = 100 * (value / planned - 1)
    tint = DOUBTFUL if (apart if slow_is_more else -apart) > _FAR_PCT else FAINT
    return Fact(
        label=label,
        full=(*full, (f"  plan {said(planned)}, {apart:+.1f} %", tint)),
        short=(*full, (f", {apart:+.1f} % of plan", tint)),
    )


def _mfu(value: float | None, planned: object, reason: str) -> Fact:
    text: Line = ((figures.percent(value, reason), PLAIN),)
    if value is None or not isinstance(planned, (int, float)):
        return Fact(label="MFU", full=text, short=((figures.percent(value), PLAIN),))
    return Fact(label="MFU", full=(*text, (f"  plan {figures.percent(planned)}", FAINT)), short=text)


def _memory(frame: Frame) -> Iterator[Fact]:
    """The fullest rank, by its share of what it has."""
    known = [row for row in frame.ranks if row["used_bytes"] is not None]
    if not known:
        return
    fullest = max(known, key=lambda row: row["used_bytes"] / (row["capacity_bytes"] or row["used_bytes"] or 1))
    used, capacity, planned = fullest["used_bytes"], fullest["capacity_bytes"], planned_bytes(fullest)
    share = 100 * used / capacity if capacity else None
    tint = PLAIN if share is None or share < 90 else DOUBTFUL if share < 95 else BAD
    full: Line = ((f"{_of_whole(used, capacity)}, rank {fullest['rank']}", tint),)
    if planned:
        full = (*full, (f"  plan {figures.memory(planned)}", FAINT))
    short: Line = (
        (f"{figures.memory(used)}{'' if share is None else f', {share:.0f} %'}, rank {fullest['rank']}", tint),
    )
    yield Fact(label="memory", full=full, short=short)


def _of_whole(used: int, capacity: int | None) -> str:
    """`68.4 of 95.0 GiB, 72 %`."""
    if not capacity:
        return figures.memory(used)
    (number, unit), whole = figures.memory(used).split(), figures.memory(capacity)
    said = number if whole.endswith(f" {unit}") else f"{number} {unit}"
    return f"{said} of {whole}, {100 * used / capacity:.0f} %"


def _slowest(frame: Frame) -> Iterator[Fact]:
    """The rank that others wait for, where one is known."""
    slowest = frame.slowest
    if slowest is None or slowest.get("behind_pct") is None:
        return
    behind = float(slowest["behind_pct"])
    tint = DOUBTFUL if behind >= 5 else PLAIN
    short: Line = ((f"rank {slowest['rank']}, {behind:.1f} % behind", tint),)
    full: Line = ((f"rank {slowest['rank']}, {behind:.1f} % behind others of its stage", tint),)
    yield Fact(label="slowest", full=full, short=short)


def _kept(frame: Frame) -> Iterator[Fact]:
    """Its last validation, what it keeps and how often it began; nothing where it has none of that and began once."""
    seen = frame.seen
    if seen.validation_step is not None:
        said = f"{figures.loss(seen.validation_loss)} after step {seen.validation_step:,}"
        yield Fact(label="val loss", full=((said, PLAIN),))
    if seen.saving_step is not None:
        after = ", and has not come to its end" if frame.state in ENDED else ""
        yield Fact(label="saving", full=((f"step {seen.saving_step:,}{after}", PLAIN),))
    if seen.saved_step is not None:
        age = figures.duration(frame.saved_s_ago)
        yield Fact(label="last save", full=((f"step {seen.saved_step:,}, {age} ago", PLAIN),))
    if seen.starts > 1:
        after = "" if seen.resumed_step is None else f", the last time after step {seen.resumed_step:,}"
        yield Fact(
            label="started",
            full=((f"{seen.starts} times{after}", PLAIN),),
            short=((f"{seen.starts} times", PLAIN),),
        )


def _of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) else {}
