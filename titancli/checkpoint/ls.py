"""`titan checkpoint ls`: the checkpoints of a run, one a line.

Knows what a manifest says of its checkpoint, and what becomes of it next. Does not know which run is meant (found), and
reads no tensor (verify).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from engine.checkpoint import places
from engine.checkpoint.committed import MANIFEST, damage, step_folder, written_in
from engine.planner.mesh import Mesh
from titancli import figures, report
from titancli.checkpoint.found import Found, find
from titancli.disk import decimal

State = Literal["committed", "unfinished", "damaged", "put aside"]
_LEFT = ("name", "state", "layout", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A checkpoint; null is what its manifest does not say, or a save that never ended has not said yet.

    `layout`: the axes of more than one rank. `tokens`: slots read, padding included. `takes`: the next `--resume` goes
    on from it. `prunes`: the next save deletes it. `harm`: what it lacks.
    """

    name: str
    step: int
    state: State
    age_s: float | None = None
    bytes: int | None = None
    layout: str | None = None
    world_size: int | None = None
    samples: int | None = None
    tokens: int | None = None
    config_sha256: str | None = None
    schema: int | None = None
    takes: bool = False
    prunes: bool = False
    harm: str = ""


def ls(name: str | None, *, dump_folder: str, as_json: bool) -> int:
    """Lists checkpoints as text or as one JSON object; 0, also where there are none. TitanError as `find`."""
    found = find(name, dump_folder)
    rows = list(rows_of(found, now_s=time.time()))
    if as_json:
        sys.stdout.write(json.dumps(_to_json(found, rows)) + "\n")
        return 0
    _say(found, rows)
    return 0


def rows_of(found: Found, *, now_s: float) -> Iterator[Row]:
    """Every checkpoint of a folder by step, those that were put aside behind the step that they were of."""
    own = found.own
    names = {step: [step_folder(step)] for step in (*own.committed, *own.unfinished)}
    for name in found.aside:
        names.setdefault(_step_of(name), []).append(name)
    for step in sorted(names):
        for name in names[step]:
            yield _row(found, step, name, now_s=now_s)


def _step_of(name: str) -> int:
    return int(name.partition(".")[0].removeprefix("step-"))


def _row(found: Found, step: int, name: str, *, now_s: float) -> Row:
    path, is_aside = found.folder / name, name in found.aside
    if step in found.own.unfinished and not is_aside:
        return Row(
            name=name,
            step=step,
            state="unfinished",
            age_s=_age_s(path, now_s),
            bytes=_bytes_in(path),
            prunes=step in found.prunes,
        )
    said, harm = written_in(path) or {}, damage(path)
    state: State = "damaged" if harm else "put aside" if is_aside else "committed"
    layout = _table(said, "layout")
    samples, seq_len = _whole(said, "samples"), _whole(_table(said, "data"), "seq_len")
    committed_s = said.get("committed_s")
    return Row(
        name=name,
        step=step,
        state=state,
        age_s=now_s - committed_s if isinstance(committed_s, int | float) else _age_s(path / MANIFEST, now_s),
        bytes=_whole(said, "bytes"),
        layout=_layout(layout),
        world_size=_whole(layout, "world_size"),
        samples=samples,
        tokens=None if samples is None or seq_len is None else samples * seq_len,
        config_sha256=said["config_sha256"] if isinstance(said.get("config_sha256"), str) else None,
        schema=_whole(said, "schema"),
        takes=not is_aside and step == found.takes,
        prunes=not is_aside and step in found.prunes,
        harm=harm,
    )


def _layout(said: dict[str, Any]) -> str | None:
    """The mesh in words; None of what has none: weights that were imported."""
    try:
        return report.axes(Mesh(**_table(said, "mesh")))
    except TypeError:
        return None


def _table(said: dict[str, Any], name: str) -> dict[str, Any]:
    found = said.get(name)
    return found if isinstance(found, dict) else {}


def _whole(said: dict[str, Any], name: str) -> int | None:
    found = said.get(name)
    return found if type(found) is int else None


def _age_s(path: Path, now_s: float) -> float | None:
    changed_s = places.changed_s(path)
    return None if changed_s is None else now_s - changed_s


def _bytes_in(path: Path) -> int | None:
    try:
        return sum(places.sizes_in(path).values())
    except OSError:
        return None


def _to_json(found: Found, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "folder": str(found.folder),
        "run": None if found.run is None else str(found.run),
        "is_running": found.is_running,
        "keep_latest_k": found.keep_latest_k,
        "resumes_after": found.takes,
        "prunes": list(found.prunes),
        "checkpoints": [asdict(row) for row in rows],
    }


# ---- for people ---------------------------------------------------------------------------------


def _say(found: Found, rows: Sequence[Row]) -> None:
    width = report.width_of(sys.stdout)
    for line in report.wrapped(_head(found, rows), width, indent=2):
        report.say(line)
    if not rows:
        return
    cells = [_cells(row, found) for row in rows]
    names = tuple(cells[0])
    for number, line in enumerate(_fitting(names, [tuple(each.values()) for each in cells], width)):
        report.say(line, tint="faint" if number == 0 else "")
    for row in rows:
        for line in report.wrapped(f"  {row.name} is damaged: {row.harm}", width, indent=4) if row.harm else ():
            report.say(line, tint="bad")


def _head(found: Found, rows: Sequence[Row]) -> str:
    states = [row.state for row in rows]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    told = ", ".join(f"{count:,} {state}" for state, count in counts.items()) or "no checkpoint"
    return f"{found.folder}: {told}{_next(found, rows)}"


def _next(found: Found, rows: Sequence[Row]) -> str:
    """What a resume of the run would do."""
    if found.takes is not None:
        return f"; goes on after step {found.takes}"
    if any(row.state == "damaged" for row in rows):
        return "; none to go on from is whole"
    return "; a run begins at its first step" if rows else ""


def _cells(row: Row, found: Found) -> dict[str, str]:
    unknown = "-"
    said = [word for word, holds in (("resume takes it", row.takes), ("next save deletes it", row.prunes)) if holds]
    if row.state == "unfinished" and found.is_running and row.step in found.own.torn:
        said = ["being written"]
    return {
        "name": row.name,
        "state": row.state,
        "age": figures.duration(row.age_s) if row.age_s is not None else unknown,
        "bytes": decimal(row.bytes) if row.bytes is not None else unknown,
        "layout": row.layout or unknown,
        "samples": f"{row.samples:,}" if row.samples is not None else unknown,
        "tokens": figures.amount(row.tokens) if row.tokens is not None else unknown,
        "config": (row.config_sha256 or unknown)[:8],
        "schema": str(row.schema) if row.schema is not None else unknown,
        "": "; ".join(said),
    }


_GIVES_WAY = ("schema", "config", "samples", "age", "layout", "tokens")
"""Columns that a narrow screen leaves out, the first one first; JSON has them all."""


def _fitting(names: Sequence[str], rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """A head and a line for each row, of as many columns as `width` takes."""
    table = [tuple(names), *rows]
    left_out: set[str] = set()
    for name in ("", *_GIVES_WAY):
        left_out |= {name} - {""}
        shown = [column for column, each in enumerate(names) if each not in left_out]
        widths = {column: max(len(cells[column]) for cells in table) for column in shown}
        if 2 + sum(widths.values()) + 2 * (len(shown) - 1) <= width:
            break
    return [
        "  " + "  ".join(_set(cells[column], widths[column], names[column]) for column in shown).rstrip()
        for cells in table
    ]


def _set(cell: str, width: int, column: str) -> str:
    """Words begin, and figures end, where those above and below do."""
    return cell.ljust(width) if column in _LEFT else cell.rjust(width)
