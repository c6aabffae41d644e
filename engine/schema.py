"""The JSON Schema of config files, with which editors complete and check them.

Knows how to say in JSON Schema what a file may hold: keys, types, ranges, words, and what each key does. Does not know
whether values go together (rules), except for the sizes of a model family. JSON Schema takes 2048.0 for a whole
number; the loader does not.
"""

from __future__ import annotations

import json
from typing import Any

from engine.config import DATASETS, Config, Section
from engine.keys import field_docs
from engine.shapes import FLAVORS

# Draft 7 is what the TOML editors' servers check with in full, and without references they find all texts.
_DRAFT = "http://json-schema.org/draft-07/schema#"
_DESCRIPTION = "A whole run; a key that is left out has its default, or what a preset says."
# Numbers in quotes, as older files have them: the loader reads them.
_SHORT_FORMS: dict[str, dict[str, Any]] = {
    "activation_checkpoint.selective_ac_option": {"type": "string", "pattern": "^0*[1-9][0-9]*$"},
}
# Free text for the loader; rules P125 and D201 refuse all other words.
_WORDS: dict[str, list[str]] = {
    "model.flavor": list(dict.fromkeys(size for sizes in FLAVORS.values() for size in sizes)),
    "training.dataset": list(DATASETS),
    "validation.dataset": list(DATASETS),
}


def json_schema() -> dict[str, Any]:
    """The schema of a config file; every key is optional, as in a file that goes over a preset."""
    known = Config.model_json_schema()
    sections = _section(Config, known, known["$defs"], "")
    return {"$schema": _DRAFT, "title": "titan config", **sections, "description": _DESCRIPTION}


def schema_text() -> str:
    """The schema as its file holds it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _section(section: type[Section], known: dict[str, Any], others: dict[str, Any], prefix: str) -> dict[str, Any]:
    """One table with its keys, those below it written out in their place."""
    properties: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, Section):
            properties[name] = _section(below, others[below.__name__], others, f"{prefix}{name}.")
        else:
            properties[name] = _key(f"{prefix}{name}", known["properties"][name])
    table = {
        "description": known["description"],
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return table | (_families() if prefix == "model." else {})


def _key(key: str, known: dict[str, Any]) -> dict[str, Any]:
    """One key as a file may give it: TOML has no null, and a title would repeat the name."""
    told = {word: value for word, value in known.items() if word not in ("title", "anyOf") and value is not None}
    ways = [each for each in known.get("anyOf", ()) if each.get("type") != "null"]
    ways += [_SHORT_FORMS[key]] if key in _SHORT_FORMS else []
    if len(ways) == 1:
        told |= ways[0]
    elif ways:
        told["anyOf"] = ways
    if key in _WORDS:
        told["enum"] = _WORDS[key]
    return {"description": field_docs()[key], **told}


def _families() -> dict[str, Any]:
    """The sizes of a family, where it is named: a chain, because editors pass over what `allOf` holds."""
    chain: dict[str, Any] = {}
    for family, sizes in reversed(FLAVORS.items()):
        chain = {
            "if": {"properties": {"name": {"const": family}}, "required": ["name"]},
            "then": {"properties": {"flavor": {"enum": list(sizes)}}},
            **({"else": chain} if chain else {}),
        }
    return chain
