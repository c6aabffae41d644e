"""The page of all keys of a config: what each takes, its default, what it does, and the rules that judge it.

Knows the order of the page. The words are those of the config, of its fields and of the rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.fields import FieldInfo

from engine.config import Config, Section
from engine.keys import field_docs, field_types
from engine.reading.toml_text import toml_value
from engine.reading.wants import want
from engine.rules import RULES
from titancli.pages.markdown import prose, table, text


def page() -> str:
    """The page, a table for each section."""
    lines = [
        "# Every key of a config",
        "",
        "In a file under its section, on a command line as `--section.key VALUE`, in the environment as "
        "`TITAN_SECTION__KEY`.",
    ]
    for name, section in _sections(Config, ""):
        rows = [_row(key) for key in field_types() if key.rpartition(".")[0] == name]
        if rows:
            lines += ["", f"## [{name}]", "", prose(str(section.__doc__).split("\n\n")[0]), ""]
            lines += table(("key", "takes", "default", "does", "judged by"), rows)
    return text(lines)


def _sections(section: type[Section], prefix: str) -> Iterator[tuple[str, type[Section]]]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield prefix + name, field.annotation
            yield from _sections(field.annotation, f"{prefix}{name}.")


def _row(key: str) -> tuple[str, str, str, str, str]:
    judges = [rule.id for rule in RULES if key in (rule.key, *rule.also)]
    links = ", ".join(f"[{id_}](rules.md#{id_.lower()})" for id_ in judges)
    name = key.rpartition(".")[2]
    return f"`{name}`", prose(want(key).words), _default(field_types()[key]), prose(field_docs()[key]), links


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if value is None else f"`{toml_value(value)}`"
