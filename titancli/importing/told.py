"""What is said of an import: the file's text, its report for people, and its JSON.

Knows words and layout. Does not know what became of a key (convert).
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from engine.errors import Finding
from engine.reading.toml_lines import key_lines
from engine.reading.toml_text import toml_value
from engine.reading.wrong_values import shown
from engine.rules import Report
from titancli import report
from titancli.config_file import commented
from titancli.importing.convert import Imported, Left, Moved, Set

_WIDTH = 100


def toml_of(done: Imported, *, schema: str | None) -> str:
    """The file: titan's keys with their documentation, and behind each what it was or why it is there."""
    text = commented(done.values, _head(done), schema=schema)
    lines, places = text.split("\n"), key_lines(text)
    for key, remark in done.remarks.items():
        line = places.get(tuple(key.split(".")))
        if line is not None:
            lines[line - 1] += f"  # {report.printable(remark)}"
    return "\n".join(lines)


def _head(done: Imported) -> list[str]:
    """Where the file comes from, and what does not mean quite what it did."""
    lines = [f"titan import made this of {Path(done.file).name}, a config of torchtitan 0.2"]
    rest = [*(f"{each.new}: {each.note}" for each in _noted(done)), *_together(done.assumed)]
    if rest:
        lines += ["", "to look at:"]
    for text in rest:
        lines += report.wrapped(f"- {text}", _WIDTH - 2, indent=2)
    return lines


def _noted(done: Imported) -> list[Moved]:
    """What means something else than before, once for each note."""
    found: dict[str, Moved] = {}
    for moved in (*done.changed, *done.renamed):
        if moved.note:
            found.setdefault(moved.note, moved)
    return list(found.values())


def to_json(done: Imported, toml: str | None, checked: Report | None, output: str | None) -> dict[str, Any]:
    """The object of `titan import --json`."""

    def plain(rows: Iterable[Moved | Left | Set]) -> list[dict[str, Any]]:
        return [{name: _plain(value) for name, value in asdict(row).items()} for row in rows]

    return {
        "ok": done.ok,
        "file": done.file,
        "output": output,
        "kept": plain(done.kept),
        "renamed": plain(done.renamed),
        "changed": plain(done.changed),
        "dropped": plain(done.dropped),
        "refused": plain(done.refused),
        "defaults": plain(done.defaults),
        "assumed": plain(done.assumed),
        "toml": toml,
        "findings": [finding.to_json() for finding in (*done.findings, *(checked.findings if checked else ()))],
    }


def _plain(value: Any) -> Any:
    """A value as JSON holds it: `inf`, `nan`, dates and times as TOML writes them."""
    match value:
        case float() if not math.isfinite(value):
            return toml_value(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case datetime.date() | datetime.time():
            return str(value)
    return value


def say_import(done: Imported, stream: TextIO) -> None:
    """What became of every key, for people."""
    say = _Lines(stream)
    say.head(f"{done.file}: {_count(len(done.kept), 'key')} kept as written, {_counts(done)}")
    say.rows("renamed", (_moved(each) for each in done.renamed))
    say.rows("taken over, with a remark", (_changed(each) for each in done.changed))
    say.rows("dropped", (f"{each.key}: {each.reason}" for each in done.dropped))
    say.rows("set, because torchtitan's default is not titan's", (_set(each) for each in done.defaults))
    say.rows("assumed", _together(done.assumed))


def say_verdict(checked: Report, stream: TextIO) -> None:
    """What titan validate says of the result, one line each."""
    say = _Lines(stream)
    say.rows("titan validate says of it", (_finding(each) for each in checked.findings))


def _counts(done: Imported) -> str:
    words = (("renamed", done.renamed), ("changed", done.changed), ("dropped", done.dropped), ("refused", done.refused))
    named: list[tuple[str, Sequence[Any]]] = [(word, rows) for word, rows in words]
    return ", ".join(f"{len(rows)} {word}" for word, rows in named)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _moved(each: Moved) -> str:
    value = "" if str(each.was) == str(each.value) else f" = {toml_value(each.value)}"
    return f"{each.old} -> {each.new}{value}" + (f" ({each.note})" if each.note else "")


def _changed(each: Moved) -> str:
    same = str(each.was) == str(each.value)
    what = f"{each.new} = {toml_value(each.value)}" if same else f"{each.new}: {shown(each.was)} -> {shown(each.value)}"
    return what + (f": {each.note}" if each.note else "")


def _together(rows: Iterable[Set]) -> list[str]:
    """Keys that are set for one reason in one text."""
    found: dict[str, list[str]] = {}
    for each in rows:
        found.setdefault(each.reason, []).append(f"{each.key} = {toml_value(each.value)}")
    return [f"{', '.join(keys)}: {reason}" for reason, keys in found.items()]


def _set(each: Set) -> str:
    return f"{each.key} = {toml_value(each.value)}: {each.reason}"


def _finding(each: Finding) -> str:
    fix = f"; {each.fix}" if each.fix else ""
    return f"{each.severity}[{each.rule}]: {each.message}{fix}"


def _fitting(text: str, width: int) -> str:
    """Text whose words fit a line: a key that is longer is broken after one of its dots."""
    return " ".join(_broken(word, width) for word in text.split(" "))


def _broken(word: str, width: int) -> str:
    cut = word.rfind(".", 0, width) + 1
    return f"{word[:cut]} {word[cut:]}" if len(word) > width and cut else word


class _Lines:
    """Headed lists on a stream, in its width."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._width = stream, report.width_of(stream)

    def head(self, text: str) -> None:
        for line in report.wrapped(text, self._width, indent=2):
            report.say(line, self._stream)

    def rows(self, title: str, rows: Iterable[str]) -> None:
        texts = list(rows)
        if texts:
            report.say("", self._stream)
            report.say(title, self._stream, tint="good")
        for text in texts:
            for line in report.wrapped(f"  {_fitting(text, self._width - 6)}", self._width, indent=6):
                report.say(line, self._stream)
