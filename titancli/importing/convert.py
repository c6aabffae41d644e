"""A torchtitan file turned into titan's keys, with what became of each of its own.

Knows how outcomes of rows are put together, and what titan's values are worth beside torchtitan's defaults. Does not
know any key's meaning (rows_*), nor how the result is written or told (told).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from engine.config import Config
from engine.errors import Finding
from engine.keys import field_types, nested, value_of
from engine.reading.layers import Layer, flags_layer
from engine.reading.origins import Origin
from engine.reading.wants import is_sound
from engine.reading.wrong_values import complaint, shown
from engine.sources import Flag
from titancli.importing.hardware import hardware_of
from titancli.importing.row import Became, Given, Gone, Outcome, Refused, Row
from titancli.importing.rows_layout import CONTEXT, PIPELINE, REPLICATE, SHARD, TENSOR
from titancli.importing.source import Entry, Source
from titancli.importing.table import ROWS

_SHUFFLE = "data.shuffle"
_IN_ORDER = "torchtitan reads a corpus in its own order"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A key that is written and what it became; `note` where it does not mean quite the same."""

    old: str
    was: Any
    new: str
    value: Any
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A key that is left out, or refused with a way out, and why."""

    key: str
    value: Any
    reason: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """A titan key that the file does not name: because defaults differ, or because it is assumed."""

    key: str
    value: Any
    reason: str


@dataclass(slots=True, kw_only=True)
class Imported:
    """What became of a file. With errors among the findings, `values` is not to be used."""

    file: str
    values: dict[str, Any] = field(default_factory=dict)
    kept: list[Moved] = field(default_factory=list)
    renamed: list[Moved] = field(default_factory=list)
    changed: list[Moved] = field(default_factory=list)
    dropped: list[Left] = field(default_factory=list)
    refused: list[Left] = field(default_factory=list)
    defaults: list[Set] = field(default_factory=list)
    assumed: list[Set] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all of the file could be taken over."""
        return not self.findings


def convert(source: Source, flags: Sequence[Flag]) -> Imported:
    """Turns every key of a file, or says why not; keys given as flags go over what comes of it."""
    layer = flags_layer(flags)
    given, assumed, reasons = _given(source, layer)
    done = Imported(file=source.file, findings=[*source.findings, *layer.findings])
    for row in ROWS.values():
        entry, outcome = source.entries.get(row.key), row.turn(given)
        if entry is not None:
            _take(done, row, entry, outcome, given)
    for row in ROWS.values():
        if row.key not in source.entries:
            _fill(done, row, row.turn(given), given)
    if _SHUFFLE not in done.values:
        _set(done.defaults, done, Set(key=_SHUFFLE, value=False, reason=_IN_ORDER), "as torchtitan")
    for key, value in assumed.items():
        _set(done.assumed, done, Set(key=key, value=value, reason=reasons[key]), "assumed")
    for key, value in layer.values.items():
        done.values[key] = value
        done.remarks[key] = f"given as {layer.origins[key].name}"
    _forget_overridden(done, layer)
    done.findings.sort(key=lambda finding: finding.line or 0)
    done.values = {key: done.values[key] for key in field_types() if key in done.values}
    return done


def _given(source: Source, layer: Layer) -> tuple[Given, Mapping[str, Any], Mapping[str, str]]:
    """The file over torchtitan's defaults; and the GPUs that it is for, with why."""
    values = {key: row.default for key, row in ROWS.items()}
    values |= {key: entry.value for key, entry in source.entries.items()}
    degrees = {key: int(layer.values.get(key, values[key])) for key in (REPLICATE, SHARD, TENSOR, PIPELINE, CONTEXT)}
    hardware = hardware_of(degrees, source.text, layer.values)
    given = Given(
        values=values,
        written=frozenset(source.entries),
        over=frozenset(layer.values),
        sharded=hardware.shards > 1,
    )
    return given, hardware.values, hardware.reasons


def _take(done: Imported, row: Row, entry: Entry, outcome: Outcome, given: Given) -> None:
    """Notes what became of a key that is written."""
    if isinstance(outcome, Refused) and row.to and set(row.to) <= given.over:
        outcome = Gone(f"--{row.to[0]} goes before it")
    match outcome:
        case Gone(reason):
            done.dropped.append(Left(key=entry.old, value=entry.value, reason=reason))
        case Refused(reason, fix):
            done.refused.append(Left(key=entry.old, value=entry.value, reason=reason, fix=fix))
            done.findings.append(_refusal(done.file, entry, reason, fix))
        case Became(values, note):
            if not values:
                done.dropped.append(Left(key=entry.old, value=entry.value, reason=note or "it says nothing"))
            for target, value in values.items():
                _put(done, entry, Moved(old=entry.old, was=entry.value, new=target, value=value, note=note))


def _put(done: Imported, entry: Entry, moved: Moved) -> None:
    """Writes one titan key, and files it under kept, renamed or changed."""
    wrong = _wrong(done.file, entry, moved)
    if wrong is not None:
        done.findings.append(wrong)
        return
    done.values[moved.new] = moved.value
    alike = str(moved.was) == str(moved.value) or moved.was == moved.value
    if moved.new != moved.old:
        done.renamed.append(moved)
        done.remarks[moved.new] = f"was {moved.old}" if alike else f"was {moved.old} = {_short(moved.was)}"
    elif alike and not moved.note:
        done.kept.append(moved)
    else:
        done.changed.append(moved)
        if not alike:
            done.remarks[moved.new] = f"was {_short(moved.was)}"


def _fill(done: Imported, row: Row, outcome: Outcome, given: Given) -> None:
    """Writes torchtitan's default of a key that the file leaves out, where titan's own would mean something else."""
    if not isinstance(outcome, Became) or row.keeps_place or not row.matters(given):
        return
    for target, value in outcome.values.items():
        differs = _as_read(target, value) != value_of(Config(), target) or outcome.note
        if target not in done.values and target not in given.over and differs:
            reason = outcome.note or f"torchtitan's default; titan's is {_short(value_of(Config(), target))}"
            _set(done.defaults, done, Set(key=target, value=value, reason=reason), "torchtitan's default")


def _set(into: list[Set], done: Imported, each: Set, remark: str) -> None:
    into.append(each)
    done.values[each.key] = each.value
    done.remarks[each.key] = remark


def _forget_overridden(done: Imported, layer: Layer) -> None:
    """What a flag sets is neither a default nor assumed."""
    for into in (done.defaults, done.assumed):
        into[:] = [each for each in into if each.key not in layer.values]


def _wrong(file: str, entry: Entry, moved: Moved) -> Finding | None:
    """The finding about a value that titan does not take, at the line where it is written."""
    try:
        Config.model_validate(nested({moved.new: moved.value}))
        if is_sound(moved.value):
            return None
    except ValidationError:
        pass
    message, fix = complaint(moved.new, moved.value, Origin("file", file, entry.line))
    return Finding(rule="U161", severity="error", key=entry.old, message=message, fix=fix, file=file, line=entry.line)


def _as_read(key: str, value: Any) -> Any:
    """A value as a config holds it: lists are tuples there."""
    return value_of(Config.model_validate(nested({key: value})), key)


def _refusal(file: str, entry: Entry, reason: str, fix: str) -> Finding:
    name = entry.old.rpartition(".")[2]
    message = f"{name} = {_short(entry.value)} cannot be taken over: {reason}"
    return Finding(rule="U162", severity="error", key=entry.old, message=message, fix=fix, file=file, line=entry.line)


def _short(value: Any) -> str:
    return "left out" if value is None else shown(value)
