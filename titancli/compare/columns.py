"""The figures of the comparison, column by column, and the words below each block of them.

Knows headings, units and how a figure reads beside that of the reference. Does not know widths (table), nor how figures
come about (beside).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from titancli import figures
from titancli.charts import seconds
from titancli.compare.beside import Beside, Row, ratio
from titancli.compare.curve import Along
from titancli.compare.idle import CAUSES
from titancli.compare.memory import Kind
from titancli.report import speed_unit

_CAUSES = {"exposed_comm": "exposed"}
_OF: dict[Kind, str] = {
    "allocator": "what the allocator reserved",
    "tensors": "what tensors held",
    "process": "of the whole process as the system counts it, Python and torch with it; no plan counts that",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading and how the cell of a run reads; a column of which nothing is known is left out."""

    head: str
    cell: Callable[[Row], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Columns under a title, and what has to be known to read them."""

    title: str
    columns: Sequence[Column]
    note: str


def blocks(compared: Beside) -> Iterator[Block]:
    """Loss, speed, memory, and where profiled the parts of a step."""
    yield Block(title="loss", columns=_of_loss(compared), note=_on_loss(compared))
    if any(row.run.validation_step is not None for row in compared.rows):
        yield Block(title="validation loss", columns=_of_validation(compared), note=_ON_VALIDATION)
    yield Block(title="speed", columns=_of_speed(compared), note=_ON_SPEED)
    yield Block(title="memory of the fullest rank", columns=_of_memory(compared), note=_on_memory(compared))
    if any(row.run.idle for row in compared.rows):
        yield Block(title="where a step goes, in % of it", columns=_of_idle(), note=_ON_IDLE)


def _of_loss(compared: Beside) -> list[Column]:
    first, against = compared.reference, f"to {compared.reference.mark}"
    return [
        Column(head="last", cell=lambda row: figures.loss(row.loss)),
        Column(head=against, cell=lambda row: _change(row, first, row.loss, first.loss)),
        Column(head="=tokens", cell=lambda row: figures.loss(row.loss_at_tokens)),
        Column(head=against, cell=lambda row: _change(row, first, row.loss_at_tokens, first.loss_at_tokens)),
        Column(head="=time", cell=lambda row: figures.loss(row.loss_at_seconds)),
        Column(head=against, cell=lambda row: _change(row, first, row.loss_at_seconds, first.loss_at_seconds)),
    ]


def _of_validation(compared: Beside) -> list[Column]:
    first, against = compared.reference, f"to {compared.reference.mark}"
    theirs = first.run.validation_loss
    return [
        Column(head="newest", cell=lambda row: figures.loss(row.run.validation_loss)),
        Column(head=against, cell=lambda row: _change(row, first, row.run.validation_loss, theirs)),
        Column(
            head="step", cell=lambda row: figures.NOT_KNOWN if (at := row.run.validation_step) is None else f"{at:,}"
        ),
    ]


def _on_loss(compared: Beside) -> str:
    told = ["last: at each run's last logged step"]
    if compared.tokens is not None:
        told.append(f"=tokens: at {round(compared.tokens):,} tokens, {_end(compared, compared.tokens, 'tokens')}")
    if compared.seconds is not None:
        after = figures.duration(compared.seconds)
        told.append(f"=time: after {after} of training, {_end(compared, compared.seconds, 'time')}")
    return "; ".join(told) + "; between two logged steps, on the line from one to the other"


def _end(compared: Beside, place: float, along: Along) -> str:
    """Why that place: whose end it is, where not all have come as far."""
    first = compared.ends_at(place, along)
    if len(first) == len(compared.begun):
        return "where all end"
    return f"where {compared.marks_of(first)} ends" if len(first) == 1 else f"where {compared.marks_of(first)} end"


def _of_speed(compared: Beside) -> list[Column]:
    first, against = compared.reference, f"to {compared.reference.mark}"
    units = {speed_unit(row.run.gpu) for row in compared.begun}
    return [
        Column(
            head=units.pop() if len(units) == 1 else "tokens/s/rank",
            cell=lambda row: figures.rate(row.tokens_per_s_per_gpu),
        ),
        Column(head=against, cell=lambda row: _times(row, first, row.tokens_per_s_per_gpu, first.tokens_per_s_per_gpu)),
        Column(head="step", cell=lambda row: figures.NOT_KNOWN if row.step_s is None else seconds(row.step_s)),
        Column(head="MFU", cell=lambda row: figures.percent(row.mfu_pct)),
        Column(
            head="trained",
            cell=lambda row: figures.duration(row.curve.seconds[-1]) if row.curve.seconds else figures.NOT_KNOWN,
        ),
    ]


_ON_VALIDATION = "over each run's own validation corpus, with the weights after that step"
_ON_SPEED = (
    "medians over the reports after the first of each attempt, which warms up; trained: seconds in steps, saving and "
    "compiling among them, without what lies between attempts and what was done anew"
)


def _of_memory(compared: Beside) -> list[Column]:
    first, against = compared.reference, f"to {compared.reference.mark}"
    return [
        Column(head="peak", cell=lambda row: figures.memory(row.peak_bytes)),
        Column(head=against, cell=lambda row: _times(row, first, row.peak_bytes, first.peak_bytes)),
        Column(head="planned", cell=lambda row: figures.memory(row.run.held.planned_bytes if row.run.held else None)),
        Column(head="of plan", cell=lambda row: _share(row.run.held.of_plan if row.run.held else None)),
        Column(head="rank", cell=lambda row: figures.NOT_KNOWN if row.run.held is None else f"{row.run.held.rank}"),
    ]


def _on_memory(compared: Beside) -> str:
    kinds = dict.fromkeys(row.run.held.kind for row in compared.rows if row.run.held is not None)
    return "; ".join(f"peak: {_OF[kind]}" for kind in kinds)


def _of_idle() -> list[Column]:
    return [Column(head=_CAUSES.get(cause, cause), cell=partial(_idle, cause)) for cause in CAUSES]


def _idle(cause: str, row: Row) -> str:
    value = (row.run.idle or {}).get(cause)
    return figures.NOT_KNOWN if value is None else f"{value:.1f}"


_ON_IDLE = "the mean of ranks and steps that were profiled; exposed: waiting for messages that nothing hides"


def _change(row: Row, first: Row, value: float | None, reference: float | None) -> str:
    """How much more or less than the reference: `+0.31 %`."""
    if row is first:
        return ""
    share = ratio(value, reference)
    if share is None:
        return figures.NOT_KNOWN
    percent = 100 * (share - 1)
    return f"{percent:+.2f} %" if abs(percent) < 10 else f"{percent:+.1f} %"


def _times(row: Row, first: Row, value: float | None, reference: float | None) -> str:
    """How many times the reference: `1.23x`."""
    if row is first:
        return ""
    share = ratio(value, reference)
    return figures.NOT_KNOWN if share is None else f"{share:.2f}x"


def _share(value: float | None) -> str:
    return figures.percent(None if value is None else 100 * value)
