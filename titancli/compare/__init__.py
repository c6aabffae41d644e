"""`titan compare`: runs beside each other, as a table, as curves, as a picture, or as a test.

Knows what was asked for and where it goes. Does not know files of runs (reading), figures (beside) or looks (table,
drawing, picture).
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from engine.errors import EXIT_OK, EXIT_RUN_FAILED, TitanError
from titancli import report
from titancli.charts import Pen
from titancli.compare.beside import Beside, beside
from titancli.compare.curve import Along, smoothed
from titancli.compare.drawing import Line, drawing
from titancli.compare.exports import to_csv, to_json
from titancli.compare.names import MARKS
from titancli.compare.picture import check_picture, draw
from titancli.compare.reading import read_run
from titancli.compare.table import COLOURS, lines_of
from titancli.compare.tolerance import band_of, judge
from titancli.monitor.follow import find_run
from titancli.whole_file import check_target, write_file

_LEAST_WIDTH = 60
_ROWS_WITHOUT_TERMINAL, _LEAST_ROWS, _MOST_ROWS = 14, 8, 20
# Lines around a drawing that should be on the screen with it: its title, its axis, a line for the next command.
_ROWS_AROUND = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for, as it was typed."""

    against: str | None = None
    smooth: str | None = None
    tolerance: str | None = None
    png: str | None = None
    csv: str | None = None
    force: bool = False
    as_json: bool = False


def compare(names: Sequence[str], wanted: Wanted, *, dump_folder: str) -> int:
    """Compares runs, the first being the reference; 1 where `--tolerance` is not met. TitanError for what is wrong."""
    along = _along(wanted.against)
    weight = _weight(wanted.smooth)
    band = None if wanted.tolerance is None else band_of(wanted.tolerance)
    if wanted.png is not None:
        check_picture(wanted.png)
    for path in (wanted.png, wanted.csv):
        if path is not None:
            check_target(path, force=wanted.force)
    folders = [find_run(name, dump_folder) for name in names]
    _check_runs(names, [folder.resolve() for folder in folders], has_band=band is not None)
    compared = beside([read_run(folder) for folder in folders])
    if wanted.against is None and compared.tokens_a_step is not None:
        # They would be the curves over steps, with other numbers below.
        along = tuple(each for each in along if each != "tokens")
    verdict = None if band is None else judge(compared, band)
    _write_files(compared, wanted, along, weight)
    if wanted.as_json:
        told = to_json(compared) | {"tolerance": None if verdict is None else verdict.to_json()}
        report.say(json.dumps(told, allow_nan=False))
    elif verdict is None:
        _say(compared, along, weight)
    elif verdict.ok:
        report.say(verdict.line())
    if verdict is not None and not verdict.ok:
        report.say_findings(verdict.findings)
    return EXIT_OK if verdict is None or verdict.ok else EXIT_RUN_FAILED


def _along(text: str | None) -> tuple[Along, ...]:
    """The axes that are asked for; all of them without a word."""
    known: tuple[Along, ...] = get_args(Along)
    if text is None:
        return known
    if text not in known:
        fix = f"write one of {', '.join(known)}, or leave it out for all of them"
        raise TitanError(report.error("U174", f"--against {text or 'nothing'}: losses are not drawn against that", fix))
    return tuple(each for each in known if each == text)


def _weight(text: str | None) -> float:
    """`--smooth` as a number; 0 without."""
    try:
        weight = 0.0 if text is None else float(text)
    except ValueError:
        weight = math.nan
    if not 0 <= weight < 1:
        message = f"--smooth {text or 'nothing'}: that is no weight of what came before"
        raise TitanError(report.error("U175", message, "give a number from 0 (as it is) to below 1, such as 0.9"))
    return weight


def _check_runs(names: Sequence[str], folders: Sequence[object], *, has_band: bool) -> None:
    """TitanError where the runs cannot be held against each other, whatever is in them."""
    twice = next((name for index, name in enumerate(names) if folders[index] in folders[:index]), None)
    if twice is not None:
        raise TitanError(report.error("U176", f"{twice} names a run that is given before", "give each run once"))
    if len(folders) > len(MARKS):
        message = f"{len(folders)} runs are more than there are letters and digits to mark them"
        raise TitanError(report.error("U177", message, f"compare at most {len(MARKS)} at once"))
    if has_band and len(folders) < 2:
        message = f"--tolerance has nothing to hold {names[0]} against"
        raise TitanError(report.error("U178", message, "give the reference first, and then the runs that are tested"))


def _write_files(compared: Beside, wanted: Wanted, along: Sequence[Along], weight: float) -> None:
    if wanted.csv is not None:
        write_file(wanted.csv, to_csv(compared), force=wanted.force)
    if wanted.png is not None:
        if not compared.begun:
            message = "no run has come to a step yet, so there is nothing to draw"
            raise TitanError(report.error("U179", message, "leave --png out until one has"))
        curves = {
            row.short: {each: smoothed(row.curve.points(each), weight) for each in along} for row in compared.begun
        }
        write_file(wanted.png, draw(wanted.png, curves, along), force=wanted.force)


def _title(compared: Beside, along: Along, weight: float) -> str:
    title = f"loss against {along}"
    if along == "steps" and compared.tokens_a_step is not None:
        title += f" of {compared.tokens_a_step:,.0f} tokens"
    return title + (f", smoothed by {weight:g}" if weight else "")


def _say(compared: Beside, along: Sequence[Along], weight: float) -> None:
    stream, pen = sys.stdout, Pen.of(sys.stdout)
    width = max(_LEAST_WIDTH, report.width_of(stream))
    height = _ROWS_WITHOUT_TERMINAL
    if stream.isatty():
        height = min(_MOST_ROWS, max(_LEAST_ROWS, shutil.get_terminal_size().lines - _ROWS_AROUND))
    lines = lines_of(compared, width=width, colour=pen.has_colour)
    lines += drawings(compared, along, weight, width=width, height=height, pen=pen)
    stream.write("\n".join(lines) + "\n")
    stream.flush()


def drawings(
    compared: Beside, along: Sequence[Along], weight: float, *, width: int, height: int, pen: Pen
) -> list[str]:
    """The curves of all runs along each axis, each drawing after an empty line; nothing where no run has a loss."""
    names = ", ".join(f"{row.mark} {report.printable(row.short)}" for row in compared.begun)
    lines: list[str] = []
    is_told = True
    for each in along:
        curves = [
            Line(
                mark=row.mark,
                colour=COLOURS[compared.rows.index(row) % len(COLOURS)],
                points=smoothed(row.curve.points(each), weight),
            )
            for row in compared.begun
        ]
        title = _title(compared, each, weight)
        is_told = len(title) + len(names) + 2 <= width
        title += f": {names}" if is_told else ""
        drawn = drawing(curves, each, title=title, width=width, height=height, pen=pen)
        lines += ["", *drawn] if drawn else []
        missing = [row for row in compared.begun if row.curve.points("steps") and not row.curve.points(each)]
        if missing:
            lines.append(f"  not known of {compared.marks_of(missing)}: its events do not say it")
    return lines if is_told or not lines else [*lines, *report.wrapped(f"  {names}", width, indent=2)]
