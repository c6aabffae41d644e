"""A torchtitan file as it is written: its keys by their names of 0.2, with their lines, and what is wrong with them.

Knows TOML, names and kinds. Does not know what becomes of a key (convert).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import Finding, TitanError
from engine.keys import field_types
from engine.reading.files import file_text
from engine.reading.moved_keys import MOVED, NOTES
from engine.reading.nearest import nearest, plain
from engine.reading.origins import Origin
from engine.reading.syntax import syntax_finding
from engine.reading.toml_lines import key_lines
from engine.reading.unknown_keys import dotted
from engine.reading.wants import Kind as WantedKind
from engine.reading.wants import Want, fits, is_sound
from engine.reading.wrong_values import complaint_about
from titancli.importing.row import Kind, Row
from titancli.importing.table import OLDER, ROWS

# A file of something else altogether would have no end of them.
_MOST_FINDINGS = 100
_OTHER_FORMS = {
    ".yaml": "YAML",
    ".yml": "YAML",
    ".json": "JSON",
    ".py": "Python, as configs of torchtitan 0.3 and later are",
}
_FIX_OTHER = "give a TOML file made for torchtitan 0.2"
_WANTED: dict[Kind, WantedKind] = {
    "whole": "whole",
    "number": "number",
    "boolean": "boolean",
    "text": "text",
    "word": "text",
    "texts": "list",
    "lists": "list",
    "any": "text",
}
_OTHER_TOOLS = {"tool": "a pyproject.toml", "build-system": "a pyproject.toml", "dependencies": "a Cargo.toml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key as it is written: `old` is its name in the file, `value` what it would be in 0.2."""

    old: str
    value: Any
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file that was read: entries by their key of 0.2, and findings about all that is no such key or value."""

    file: str
    text: str
    entries: Mapping[str, Entry]
    findings: tuple[Finding, ...]


def read_source(file: str) -> Source:
    """Reads a file; TitanError where it is not TOML, or was not made for torchtitan."""
    form = _OTHER_FORMS.get(Path(file).suffix.lower())
    text = _text(file)
    if form is not None:
        raise TitanError(_whole("U164", f"{file} is {form}", _FIX_OTHER, file))
    try:
        tables, lines = tomllib.loads(text), key_lines(text)
    except (ValueError, RecursionError) as error:
        raise TitanError(syntax_finding(error, text, file)) from None
    found = list(_leaves(tables, ()))
    _check_tool(file, tables, [dotted(path) for path, _ in found])
    entries: dict[str, Entry] = {}
    findings: list[Finding] = []
    for path, value in found:
        line = lines.get(path) or lines.get(path[:-1])
        finding = _take(dotted(path), value, Origin("file", file, line), entries)
        findings += [finding] if finding else []
    if len(findings) > _MOST_FINDINGS:
        more = len(findings) - _MOST_FINDINGS
        findings[_MOST_FINDINGS:] = [_whole("U160", f"{more} more keys are wrong", _FIX_OTHER, file)]
    return Source(file=file, text=text, entries=entries, findings=tuple(findings))


def _text(file: str) -> str:
    try:
        return file_text(file)
    except TitanError as error:
        # Presets are titan's own configs, and no way out here.
        told = (replace(each, fix=_FIX_OTHER) if "--preset" in each.fix else each for each in error.findings)
        raise TitanError(*told) from None


def _leaves(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key that holds a value, and tables that hold nothing where no section is."""
    waiting = [(table, above)]
    while waiting:
        table, above = waiting.pop(0)
        for name, value in table.items():
            path = (*above, name)
            if isinstance(value, dict) and (value or _is_section(dotted(path))) and dotted(path) not in ROWS:
                waiting.append((value, path))
            else:
                yield path, value


def _is_titans_section(name: str) -> bool:
    """Whether it is a table of titan's; an empty one, such as the last of a written config, is its only key."""
    return any(key.startswith(f"{name}.") for key in field_types())


def _is_section(name: str) -> bool:
    return any(key.startswith(f"{name}.") for key in (*ROWS, *OLDER))


def _check_tool(file: str, tables: Mapping[str, Any], keys: list[str]) -> None:
    """TitanError for a file of titan's own or of another tool."""
    strange = [key for key in keys if key not in ROWS and key not in OLDER]
    first = next((key for key in strange if key in field_types()), None)
    if first is not None and all(key in field_types() or _is_titans_section(key) for key in strange):
        message = f"{file} is a config of titan's already: torchtitan has no {first}"
        fix = f"use it as it is: titan validate {file}"
        raise TitanError(_whole("U163", message, fix, file))
    if not keys:
        raise TitanError(_whole("U164", f"{file} has no keys: there is nothing to import", _FIX_OTHER, file))
    if len(strange) == len(keys) and not any(_is_section(name) for name in tables):
        tool = next((tool for name, tool in _OTHER_TOOLS.items() if name in tables), "the config of another tool")
        message = f"{file} looks like {tool}: torchtitan has no section {', '.join(f'[{name}]' for name in tables)}"
        raise TitanError(_whole("U164", message, _FIX_OTHER, file))


def _take(key: str, value: Any, origin: Origin, entries: dict[str, Entry]) -> Finding | None:
    """Puts one key among the entries; a finding where it is unknown, given twice or of a wrong kind."""
    older = OLDER.get(key)
    now = older.now if older else key
    row = ROWS.get(now)
    if row is None:
        return _unknown(key, origin)
    if now in entries:
        message = f"{key} and {entries[now].old} are two names of one key"
        return _finding("U161", key, message, f"keep {now}", origin)
    read = _read(row, older.value(value) if older else value)
    wanted = _want(row)
    if not _holds(row, wanted, read):
        lists = ("this is no list of lists of names", 'write [["one", "two"], ["three"]]')
        told = lists if row.kind == "lists" else complaint_about(wanted, key, value, in_toml=True)
        return _finding("U161", key, *told, origin)
    entries[now] = Entry(old=key, value=read, line=origin.line)
    return None


def _read(row: Row, value: Any) -> Any:
    """A value in its own form: lists may be written as words with commas, and a choice of words in any kind."""
    if row.kind == "texts" and isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    if row.kind == "word" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _want(row: Row) -> Want:
    """What torchtitan wants at a key, in the words that titan has for it."""
    if row.choices:
        return Want(choices=row.choices)
    return Want(frozenset({_WANTED[row.kind]}))


def _holds(row: Row, wanted: Want, value: Any) -> bool:
    if not is_sound(value):
        return False
    match row.kind:
        case "any":
            return True
        case "texts":
            return isinstance(value, list) and all(isinstance(item, str) for item in value)
        case "lists":
            return isinstance(value, list) and all(isinstance(name, str) for item in value for name in _items(item))
        case "text" | "word":
            return isinstance(value, str) and (not row.choices or value in row.choices)
    return fits(wanted, value)


def _items(value: Any) -> list[Any]:
    """What is in a list; what is none is no name either."""
    return value if isinstance(value, list) else [None]


def _unknown(key: str, origin: Origin) -> Finding:
    """The finding about a key that torchtitan 0.2 does not have, with the nearest that it has."""
    section, _, name = key.rpartition(".")
    place = f"in [{section}]" if section else "at the top level"
    if _is_section(key):
        return _finding("U161", key, f"[{key}] is a section", f"write [{key}] and its keys below it", origin)
    if key in field_types():
        fix = f"leave it out, and give it as a flag: --{key} VALUE"
        return _finding("U160", key, f"{name} {place} is titan's, and no key of torchtitan's", fix, origin)
    if key in MOVED:
        note = f"; {NOTES[key]}" if key in NOTES else ""
        fix = f"leave it out, and give it as a flag: --{MOVED[key]} VALUE"
        return _finding("U160", key, f"{name} {place} is older than 0.1: it is now {MOVED[key]}{note}", fix, origin)
    near = _near(section, name)
    if near is None:
        fix = "leave it out; titan cannot know what it does"
        return _finding("U160", key, f"torchtitan 0.2 has no key {name} {place}", fix, origin)
    at, _, right = near.rpartition(".")
    fix = f"write {right}" if at == section else f"write {right} in [{at}]"
    return _finding("U160", key, f"torchtitan 0.2 has no key {name} {place}: the nearest is {near}", fix, origin)


def _near(section: str, name: str) -> str | None:
    """The key that a name most likely means: the same but for hyphens, else near to it, here before elsewhere."""
    homes = [key for key in ROWS if plain(key.rpartition(".")[2]) == plain(name)]
    if homes:
        return nearest(section, tuple(homes), cutoff=0.0)
    here = nearest(name, tuple(key.rpartition(".")[2] for key in ROWS if key.rpartition(".")[0] == section))
    if here is not None:
        return f"{section}.{here}"
    ends = {key.rpartition(".")[2]: key for key in reversed(list(ROWS))}
    found = nearest(name, tuple(ends), cutoff=0.75)
    return ends[found] if found else None


def _finding(rule: str, key: str, message: str, fix: str, origin: Origin) -> Finding:
    return Finding(
        rule=rule, severity="error", key=key, message=message, fix=fix, file=origin.file, line=origin.line, source=None
    )


def _whole(rule: str, message: str, fix: str, file: str) -> Finding:
    """A finding about a file as a whole."""
    return Finding(rule=rule, severity="error", key="", message=message, fix=fix, file=file)
