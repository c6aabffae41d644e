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
from engine.keys import field_types, nested
from engine.reading.covered import covered_model
from engine.reading.files import file_text, preset_names, preset_text
from engine.reading.flags import Flag, split_flags
from engine.reading.layers import Layer, environment_layer, flags_layer, toml_layer, unreadable
from engine.reading.origins import DEFAULT, Origin, OriginKind, locate
from engine.reading.toml_text import to_toml

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
        findings=(*(finding for layer in layers for finding in layer.findings), *covered_model(origins)),
        broken=frozenset(broken),
        stem=(Path(path).stem if path is not None else preset) or "titan",
    )


def _preset_layer(name: str) -> Layer:
    try:
        return toml_layer(preset_text(name), Origin("preset", f"presets/{name}.toml", None, name))
    except TitanError as error:
        return unreadable(*error.findings)


def _file_layer(path: str | Path) -> Layer:
    try:
        return toml_layer(file_text(path), Origin("file", os.fspath(path)))
    except TitanError as error:
        return unreadable(*error.findings)
