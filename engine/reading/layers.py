"""What each source says: the values of one preset, file, environment or command line, with their origins.

Knows how each is written and which of its keys exist. Does not know which source wins (sources.py).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from engine.config import Config
from engine.errors import Finding
from engine.keys import field_types, is_boolean, nested
from engine.reading.flags import Flag
from engine.reading.origins import Origin
from engine.reading.syntax import syntax_finding
from engine.reading.toml_lines import KeyPath, key_lines
from engine.reading.unknown_keys import Unknown, dotted, sections, unknown_key, unknown_table, variable
from engine.reading.wants import is_sound, read_word
from engine.reading.wrong_values import complaint, shown

# A file of something else altogether would have no end of them.
_MOST_FINDINGS = 100
_MOST_OF_A_TABLE = 40


@dataclass(slots=True)
class Layer:
    """One source as read: good values, the origin of every key it names, its findings, and the keys it spoils.

    `untold` counts unknown keys beyond those that have a finding of their own.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    untold: int = 0

    def note_unknown(self, unknown: Unknown) -> None:
        """Keep the finding; a key that was surely meant has no value that can be trusted."""
        self.findings.append(unknown.finding)
        if len(unknown.meant) == 1:
            self.broken.add(unknown.meant[0])

    def complain(self, key: str, message: str, fix: str, origin: Origin) -> None:
        """Add a finding about the value of a key, and spoil the key."""
        self.findings.append(_finding("S102", key, message, fix, origin))
        self.broken.add(key)


def unreadable(*findings: Finding) -> Layer:
    """A source that could not be read: every key may have been meant by it."""
    return Layer(findings=list(findings), broken=set(field_types()))


def _finding(rule: str, key: str, message: str, fix: str, origin: Origin) -> Finding:
    file, line, source = origin.place
    return Finding(rule=rule, severity="error", key=key, message=message, fix=fix, file=file, line=line, source=source)


def toml_layer(text: str, origin: Origin) -> Layer:
    """A preset or file from its text; `origin` names it, without a line."""
    try:
        tables, lines = tomllib.loads(text), key_lines(text)
    except (ValueError, RecursionError) as error:
        return unreadable(syntax_finding(error, text, str(origin.file)))
    layer = Layer()
    _walk(tables, (), layer, _Places(origin, lines))
    _check(layer)
    layer.findings.sort(key=lambda finding: finding.line or 0)
    if layer.untold:
        message = f"{layer.untold:,} more keys or tables of {origin.file} are unknown"
        layer.findings.append(_finding("S101", "", message, "give a TOML file made for titan", origin))
        layer.broken |= set(field_types())
    return layer


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Variables `TITAN_SECTION__KEY`; other names that begin with TITAN_ are not ours."""
    layer = Layer()
    for name in sorted(environ):
        if not name.startswith("TITAN_") or "__" not in name.removeprefix("TITAN_").strip("_"):
            continue
        key, origin = name.removeprefix("TITAN_").lower().replace("__", "."), Origin("environment", name=name)
        if key in layer.origins:
            message = f"{name} and {layer.origins[key].name} set the same key"
            layer.complain(key, message, f"keep {variable(key)}", origin)
            layer.values.pop(key, None)
        elif key in field_types():
            layer.origins[key] = origin
            layer.values[key] = read_word(key, environ[name])
        else:
            layer.note_unknown(unknown_key(key, origin))
    _check(layer)
    return layer


def flags_layer(flags: Sequence[Flag]) -> Layer:
    """Dotted flags; of two for one key the last counts."""
    layer = Layer()
    last = {flag.key: flag for flag in flags}
    for key, flag in last.items():
        origin = Origin("flag", name=flag.text)
        if key not in field_types():
            layer.note_unknown(unknown_key(key, origin))
            continue
        layer.origins[key] = origin
        boolean = is_boolean(key)
        if flag.text.startswith("--no-") and (not boolean or flag.value is not False):
            message = f"{flag.text} takes no value" if boolean else f"{flag.text} is for keys that are true or false"
            layer.complain(key, message, f"write --{key}" + ("=false" if boolean else " VALUE"), origin)
        elif flag.value is None:
            layer.complain(key, f"{flag.text} needs a value", f"write --{key}=VALUE", origin)
        else:
            layer.values[key] = read_word(key, flag.value) if isinstance(flag.value, str) else flag.value
    _check(layer)
    return layer


@dataclass(frozen=True, slots=True)
class _Places:
    """The origin of each path of a TOML text."""

    origin: Origin
    lines: Mapping[KeyPath, int]

    def __getitem__(self, path: KeyPath) -> Origin:
        return Origin(self.origin.kind, self.origin.file, self.lines.get(path), self.origin.name)


def _walk(table: dict[str, Any], above: tuple[str, ...], layer: Layer, places: _Places) -> None:
    """Sort what a table holds into values, sections and unknown keys."""
    for name, value in table.items():
        path = (*above, name)
        key = dotted(path)
        if key in field_types():
            layer.values[key], layer.origins[key] = value, places[path]
        elif key in sections():
            if isinstance(value, dict):
                _walk(value, path, layer, places)
            else:
                _not_a_table(key, value, layer, places[path])
        elif len(layer.findings) >= _MOST_FINDINGS:
            layer.untold += 1
        elif isinstance(value, dict):
            _walk_unknown(value, path, layer, places)
        else:
            layer.note_unknown(unknown_key(key, places[path]))


def _walk_unknown(table: dict[str, Any], path: tuple[str, ...], layer: Layer, places: _Places) -> None:
    """Report a table that is no section, and the tables in it, however deep."""
    waiting = [(table, path)]
    while waiting:
        table, path = waiting.pop()
        inner = {name: value for name, value in table.items() if isinstance(value, dict)}
        if len(layer.findings) >= _MOST_FINDINGS:
            layer.untold += len(table)
            continue
        names = [name for name in table if name not in inner]
        layer.untold += len(names[_MOST_OF_A_TABLE:])
        keys = [(dotted((*path, name)), places[(*path, name)]) for name in names[:_MOST_OF_A_TABLE]]
        if keys or not inner:
            for unknown in unknown_table(dotted(path), keys, places[path]):
                layer.note_unknown(unknown)
        waiting += [(value, (*path, name)) for name, value in inner.items()]


def _not_a_table(key: str, value: Any, layer: Layer, origin: Origin) -> None:
    of_tables = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
    message = f"[[{key}]] is a list of tables" if of_tables else f"{key} is given as {shown(value)}"
    layer.findings.append(
        _finding("S102", key, f"{message}; {key} is one section", f"write [{key}] and its keys below it", origin)
    )
    layer.broken |= {known for known in field_types() if known.startswith(f"{key}.")}


def _check(layer: Layer) -> None:
    """Check each value by itself, and take those that the config refuses out of the values."""
    wrong = {key for key, value in layer.values.items() if not is_sound(value)}
    try:
        Config.model_validate(nested(layer.values))
    except ValidationError as error:
        wrong |= {_key_of(fault["loc"]) for fault in error.errors(include_url=False, include_context=False)}
    for key in sorted(wrong):
        message, fix = complaint(key, layer.values.pop(key), layer.origins[key])
        layer.complain(key, message, fix, layer.origins[key])
    # A key that is there under its right name too is as good as written.
    layer.broken -= layer.values.keys()


def _key_of(location: tuple[int | str, ...]) -> str:
    """The key that pydantic's location is in: kinds of a union and places in a value come after it."""
    for end in range(len(location), 0, -1):
        key = ".".join(str(part) for part in location[:end])
        if key in field_types():
            return key
    raise AssertionError(f"pydantic refused something that is no key: {location}")
