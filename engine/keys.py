"""The keys of a config by dotted name: their fields, their texts, reading and replacing values.

Knows the sections only through `Config`; adding a key there is all that it takes.
"""

from __future__ import annotations

import ast
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from pydantic.fields import FieldInfo

from engine import config as config_module
from engine.config import Config, Section


@cache
def field_types() -> dict[str, FieldInfo]:
    """Every dotted key of a config file with its pydantic field, in the order of the sections."""

    def walk(section: type[Section], prefix: str) -> dict[str, FieldInfo]:
        keys: dict[str, FieldInfo] = {}
        for name, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                keys |= walk(field.annotation, f"{prefix}{name}.")
            else:
                keys[prefix + name] = field
        return keys

    return walk(Config, "")


def is_boolean(key: str) -> bool:
    """Whether a key takes true or false (or nothing): its bare flag means true."""
    field = field_types().get(key)
    return field is not None and field.annotation in (bool, bool | None)


@cache
def field_docs() -> dict[str, str]:
    """The text under every field, by dotted key: read from `config.py`, and only when somebody asks."""
    classes = {
        node.name: node
        for node in ast.parse(Path(config_module.__file__).read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    }

    def walk(section: type[Section], prefix: str) -> dict[str, str]:
        docs: dict[str, str] = {}
        body = classes[section.__name__].body
        texts = {
            field.target.id: after.value.value
            for field, after in pairwise(body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        }
        for name, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                docs |= walk(field.annotation, f"{prefix}{name}.")
            elif name in texts:
                docs[prefix + name] = texts[name]
        return docs

    return walk(Config, "")


def value_of(config: Config, key: str) -> Any:
    """The value at a dotted key; KeyError where there is none."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Section) or part not in type(value).model_fields:
            raise KeyError(key)
        value = getattr(value, part)
    return value


def tokenizer_name(config: Config) -> str:
    """`bytes`, or the path of the tokenizer: `data.tokenizer` goes before `model.hf_assets_path`."""
    return config.data.tokenizer or config.model.hf_assets_path or "bytes"


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested tables: `{"a.b": 1}` becomes `{"a": {"b": 1}}`."""
    tables: dict[str, Any] = {}
    for key, value in values.items():
        *path, name = key.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[name] = value
    return tables


def with_legal_values(config: Config, values: dict[str, Any]) -> Config:
    """The same as `with_values` for values that are known to be legal: unchecked, as a search makes thousands."""
    return cast(Config, _copied(config, nested(values)))


def _copied(section: Section, tables: dict[str, Any]) -> Section:
    values = dict(tables)
    for name in tables:
        inner = getattr(section, name)
        if isinstance(inner, Section):
            values[name] = _copied(inner, tables[name])
    return section.model_copy(update=values)


def with_values(config: Config, values: dict[str, Any]) -> Config:
    """A copy with dotted keys replaced, checked like a file."""
    tables = config.model_dump(exclude_unset=False)
    for key, value in values.items():
        *path, name = key.split(".")
        table = tables
        for part in path:
            table = table[part]
        table[name] = value
    return Config.model_validate(tables)
