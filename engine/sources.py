"""How a config is read: defaults < preset < file < environment < flags.

Knows every source, the Origin of every key, and all that is wrong with what was written. Does not
know whether the values go together (rules.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.errors import Finding, TitanError
from engine.flags import Flag, split_flags
from engine.keys import field_types, nested, value_of
from engine.layers import Layer, environment_layer, flags_layer, read_file, toml_layer, unreadable
from engine.origins import DEFAULT, Origin, OriginKind, locate
from engine.wants import nearest

__all__ = [
    "Flag",
    "Loaded",
    "Origin",
    "OriginKind",
    "load",
    "locate",
    "preset_names",
    "preset_text",
    "split_flags",
    "to_toml",
]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config as read, with where each value came from and what is wrong with what was written.

    `config` is always there. A key in `broken` stands at its default, because what was written for it cannot be used: a
    wrong value, a misspelled name whose meaning is plain, or a file that cannot be read. `stem` names runs: the
    file's stem, else the preset's name, else `titan`.
    """

    config: Config
    origins: Mapping[str, Origin]
    findings: tuple[Finding, ...]
    broken: frozenset[str]
    stem: str


def load(
    path: str | Path | None = None,
    *,
    preset: str | None = None,
    flags: Sequence[Flag] = (),
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Read a config from all its sources; mistakes become findings, never exceptions.

    `environ` stands for `os.environ` where it is left out; pass `{}` to read none.
    """
    layers: list[Layer] = []
    if preset is not None:
        layers.append(_preset_layer(preset))
    if path is not None:
        layers.append(_file_layer(path))
    layers.append(environment_layer(os.environ if environ is None else environ))
    layers.append(flags_layer(flags))

    values: dict[str, Any] = {}
    origins = dict.fromkeys(field_types(), DEFAULT)
    broken: set[str] = set()
    for layer in layers:
        # What a layer sets well heals what lies below it, what it spoils hides that.
        broken = (broken - layer.values.keys()) | layer.broken
        values = {key: value for key, value in (values | layer.values).items() if key not in broken}
        origins |= layer.origins
    return Loaded(
        config=Config.model_validate(nested(values)),
        origins=origins,
        findings=tuple(finding for layer in layers for finding in layer.findings),
        broken=frozenset(broken),
        stem=Path(path).stem if path is not None else preset or "titan",
    )


def preset_names() -> tuple[str, ...]:
    """The presets that come with titan, by name."""
    from importlib.resources import files

    names = (entry.name for entry in files("presets").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def preset_text(name: str) -> str:
    """The TOML of a preset; TitanError where there is none of that name."""
    from importlib.resources import files

    if name not in preset_names():
        raise TitanError(_no_preset(name))
    return files("presets").joinpath(f"{name}.toml").read_text("utf-8")


def to_toml(config: Config) -> str:
    """A whole config as TOML that `load` reads back to an equal Config; keys without a value are left out."""
    sections: dict[str, list[str]] = {}
    for key in field_types():
        value = value_of(config, key)
        if value is not None:
            section, _, name = key.rpartition(".")
            sections.setdefault(section, []).append(f"{name} = {_toml(value)}")
    return "\n".join("\n".join([f"[{section}]", *lines, ""]) for section, lines in sections.items())


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _toml_text(value)
        case tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml_text(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    return repr(value)


def _toml_text(text: str) -> str:
    """A TOML string: quotes, backslashes and control characters escaped."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    letters = (escapes.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c) for c in text)
    return f'"{"".join(letters)}"'


def _preset_layer(name: str) -> Layer:
    if name not in preset_names():
        return Layer(findings=[_no_preset(name)], broken=set(field_types()))
    return toml_layer(preset_text(name), Origin("preset", f"presets/{name}.toml", None, name))


def _file_layer(path: str | Path) -> Layer:
    text = read_file(path)
    if isinstance(text, str):
        return toml_layer(text, Origin("file", os.fspath(path)))
    if not Path(path).exists():
        return unreadable(text.findings[0].message, _which_file(Path(path)), rule="S104", file=os.fspath(path))
    return text


def _no_preset(name: str) -> Finding:
    names = preset_names()
    near = nearest(name, names)
    fix = f"write --preset {near}" if near else f"choose one of {', '.join(names)}"
    return Finding(
        rule="S104", severity="error", key="", message=f"there is no preset {name}", fix=fix, source=f"preset {name}"
    )


def _which_file(path: Path) -> str:
    """What a path that is not there may have meant: a preset, or a file in that folder."""
    if path.name.removesuffix(".toml") in preset_names() and path.parent == Path():
        return f"write --preset {path.name.removesuffix('.toml')}"
    try:
        here = tuple(sorted(entry.name for entry in path.parent.iterdir() if entry.suffix == ".toml"))
    except OSError:
        return f"there is no folder {path.parent} either: give the path of a TOML file"
    near = nearest(path.name, here)
    return f"write {path.with_name(near)}" if near else "give the path of a TOML file, or --preset NAME"
