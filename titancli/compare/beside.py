"""The runs beside each other: figures of each, at the tokens and the seconds that all of them reached.

Knows which figures are compared and with what: the first run is the reference. Does not know how they look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from titancli.compare.curve import Along, Curve, loss_at
from titancli.compare.differences import Difference, differences
from titancli.compare.names import MARKS, names_of, shortened
from titancli.compare.reading import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run among others: its mark, its name in full and as short as tells it from theirs, and its figures.

    `loss_at_tokens` and `loss_at_seconds` are those at `Beside.tokens` and `Beside.seconds`. None is not known.
    """

    mark: str
    name: str
    short: str
    run: Run
    loss: float | None
    loss_at_tokens: float | None
    loss_at_seconds: float | None
    tokens_per_s_per_gpu: float | None
    step_s: float | None
    mfu_pct: float | None

    @property
    def curve(self) -> Curve:
        """The curve of the run."""
        return self.run.curve

    @property
    def peak_bytes(self) -> int | None:
        """The most that a rank of it took."""
        return None if self.run.held is None else self.run.held.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """All runs, the reference first; `tokens` and `seconds` are the most that all runs with a loss have come to.

    `begins` and `ends` are what all names have in common.
    """

    rows: tuple[Row, ...]
    begins: str
    ends: str
    differences: tuple[Difference, ...]
    tokens: float | None
    seconds: float | None

    @property
    def reference(self) -> Row:
        """The run that the others are held against."""
        return self.rows[0]

    def ends_at(self, place: float, along: Along) -> tuple[Row, ...]:
        """The runs that come no further than a place that all have come to."""
        found = ((row, row.curve.points(along)) for row in self.rows)
        return tuple(row for row, points in found if points and points[-1][0] <= place * (1 + _ALIKE))

    def marks_of(self, rows: Sequence[Row]) -> str:
        """The marks of some runs, neighbours of three and more drawn together: `A-D, F`."""
        runs: list[list[int]] = []
        for place in map(self.rows.index, rows):
            if runs and place == runs[-1][-1] + 1:
                runs[-1].append(place)
            else:
                runs.append([place])
        marks = [[self.rows[place].mark for place in each] for each in runs]
        return ", ".join(f"{each[0]}-{each[-1]}" if len(each) > 2 else ", ".join(each) for each in marks)

    @property
    def tokens_a_step(self) -> float | None:
        """Tokens of a step, padding among them, where all runs have the same in all of them; else None."""
        found = {window.step_slots for row in self.begun for window in row.curve.windows}
        return next(iter(found)) if len(found) == 1 else None

    @property
    def begun(self) -> tuple[Row, ...]:
        """Those that have come to a step."""
        return tuple(row for row in self.rows if row.curve.steps)


# Sums of floats that are meant to be one number.
_ALIKE = 1e-9


def beside(runs: Sequence[Run]) -> Beside:
    """Puts runs beside each other, in their order."""
    names = names_of([run.folder for run in runs])
    begins, shorts, ends = shortened(names)
    tokens, seconds = _reached(runs, "tokens"), _reached(runs, "time")
    rows = tuple(
        _row(run, mark, name, short, tokens=tokens, seconds=seconds)
        for run, mark, name, short in zip(runs, MARKS, names, shorts, strict=False)
    )
    return Beside(rows=rows, begins=begins, ends=ends, differences=differences(runs), tokens=tokens, seconds=seconds)


def _row(run: Run, mark: str, name: str, short: str, *, tokens: float | None, seconds: float | None) -> Row:
    curve = run.curve
    return Row(
        mark=mark,
        name=name,
        short=short,
        run=run,
        loss=curve.last_loss,
        loss_at_tokens=None if tokens is None else loss_at(curve.points("tokens"), tokens),
        loss_at_seconds=None if seconds is None else loss_at(curve.points("time"), seconds),
        tokens_per_s_per_gpu=curve.median("tokens_per_s_per_gpu"),
        step_s=curve.median("step_s"),
        mfu_pct=curve.median("mfu_pct"),
    )


def _reached(runs: Sequence[Run], along: Along) -> float | None:
    """How far all runs with a loss have come along an axis; None where that is not known of one of them."""
    curves = [run.curve for run in runs if run.curve.points("steps")]
    ends = [points[-1][0] for curve in curves if (points := curve.points(along))]
    return min(ends) if ends and len(ends) == len(curves) else None


def ratio(value: float | None, reference: float | None) -> float | None:
    """A figure over that of the reference; None where either is not known or the reference is 0."""
    return value / reference if value is not None and reference else None
