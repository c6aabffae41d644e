"""The JSON Schema of configs agrees with the loader."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from engine.config import Config
from engine.keys import field_docs, field_types, nested
from engine.reading.layers import toml_layer
from engine.reading.origins import Origin
from engine.reading.toml_text import to_toml, toml_key, toml_value
from engine.reading.wants import want
from engine.rules import check
from engine.schema import json_schema, schema_text
from engine.shapes import FLAVORS
from engine.sources import load, preset_names, preset_text

SCHEMA = json_schema()
KNOWN = Draft7Validator(SCHEMA)
FILE = Path(__file__).parents[2] / "presets" / "titan.schema.json"
# The schema knows which words rules let through; the loader takes any text.
CHECKED_LATER = ("model.flavor", "training.dataset", "validation.dataset")
WORDS = sorted(
    {word for key in field_types() for word in want(key).choices} | {"8B", "stdlib", "", "7", "00", "x", "1.5"}
)
NUMBERS = st.one_of(
    st.integers(-(2**63) + 1, 2**63 - 1), st.sampled_from([-1, 0, 1, 2, 10_000, 10_001]), st.floats(-2, 1e7, width=32)
)
VALUES = st.one_of(
    NUMBERS,
    st.booleans(),
    st.sampled_from(WORDS),
    st.lists(st.sampled_from(WORDS) | NUMBERS, max_size=2),
    st.dictionaries(st.sampled_from(WORDS), NUMBERS | st.sampled_from(WORDS), max_size=2),
)


def at(key: str) -> dict[str, Any]:
    """What the schema says of a key."""
    found = SCHEMA
    for part in key.split("."):
        found = found["properties"][part]
    return found


def agree(text: str) -> None:
    """Both take a text, or both refuse it."""
    findings = toml_layer(text, Origin("file", "run.toml")).findings
    errors = [error.message for error in KNOWN.iter_errors(tomllib.loads(text))]
    assert (findings == []) == (errors == []), (text, findings, errors)


def test_it_is_a_sound_schema_of_its_draft() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"


def test_the_file_beside_the_presets_is_what_titan_says() -> None:
    assert FILE.read_text("utf-8") == schema_text(), "titan schema --output presets/titan.schema.json --force"


def test_every_key_is_there_with_its_documentation_and_default() -> None:
    dumped = Config().model_dump(mode="json")
    for key in field_types():
        told, default = at(key), dumped
        for part in key.split("."):
            default = default[part]
        assert told["description"] == field_docs()[key]
        assert told.get("default") == default


def test_there_is_no_key_that_a_config_has_not() -> None:
    def walk(table: dict[str, Any], prefix: str) -> list[str]:
        keys: list[str] = []
        for name, told in table["properties"].items():
            is_section = "properties" in told
            assert not is_section or told["additionalProperties"] is False
            keys += walk(told, f"{prefix}{name}.") if is_section else [prefix + name]
        return keys

    assert walk(SCHEMA, "") == list(field_types())


def test_words_to_choose_from_are_those_of_the_config() -> None:
    assert at("parallelism.pipeline_parallel_schedule")["enum"] == list(
        want("parallelism.pipeline_parallel_schedule").choices
    )
    assert {"const": "auto", "type": "string"} in at("training.local_batch_size")["anyOf"]


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_taken_and_name_the_schema_beside_them(name: str) -> None:
    text = preset_text(name)
    assert text.startswith("#:schema ./titan.schema.json\n")
    assert list(KNOWN.iter_errors(tomllib.loads(text))) == []


def test_a_whole_config_is_taken() -> None:
    assert list(KNOWN.iter_errors(tomllib.loads(to_toml(Config())))) == []


@pytest.mark.parametrize(
    "text",
    [
        "[training]\nseq_length = 8",
        "[trainig]\nseq_len = 8",
        "seq_len = 8",
        "[quantize.dense.float8]\nenabled = true",
        "training = 8",
        "[[training]]\nseq_len = 8",
        '[activation_checkpoint]\nselective_ac_option = "2"',
        '[activation_checkpoint]\nselective_ac_option = "0"',
        "[training]\nseq_len = true",
        '[training]\nseq_len = "8"',
        "[training]\nmax_norm = 1",
        "[optimizer]\nbeta1 = 1",
        "[compile]\nenable = 1",
        '[compile]\ncomponents = "model"',
        "[data.mixture]\na = 0",
    ],
)
def test_loader_and_schema_agree_where_people_slip(text: str) -> None:
    agree(text)


@settings(max_examples=400, deadline=None)
@given(key=st.sampled_from(list(field_types())), value=VALUES)
@example(key="comm.init_timeout_seconds", value=0)
def test_loader_and_schema_agree_on_any_value(key: str, value: Any) -> None:
    assume(not (isinstance(value, str) and key in CHECKED_LATER))
    # For JSON Schema 8.0 is a whole number.
    assume(not isinstance(value, float) or not value.is_integer() or "whole" not in want(key).kinds)
    section, _, name = key.rpartition(".")
    agree(f"[{section}]\n{name} = {toml_value(value)}\n")


@settings(max_examples=100, deadline=None)
@given(key=st.sampled_from(list(field_types())), place=st.integers(0, 30), letter=st.sampled_from("abs_x"))
def test_loader_and_schema_agree_on_any_name(key: str, place: int, letter: str) -> None:
    wrong = key[: place % len(key)] + letter + key[place % len(key) :]
    assume(wrong not in field_types())
    default = Config().model_dump(mode="json")
    for part in key.split("."):
        default = default[part]
    tables = nested({wrong: default if default is not None else 1})
    agree("\n".join(f"{toml_key(name)} = {toml_value(value)}" for name, value in tables.items()))


@pytest.mark.parametrize("family", FLAVORS)
def test_sizes_of_a_family_are_those_that_rules_let_through(family: str, tmp_path: Path) -> None:
    sizes = {size for others in FLAVORS.values() for size in others}
    for size in sizes:
        tables = {"model": {"name": family, "flavor": size}}
        assert (list(KNOWN.iter_errors(tables)) == []) == (size in FLAVORS[family])
    file = tmp_path / "run.toml"
    file.write_text(f'[model]\nname = "{family}"\nflavor = "9B"\n')
    assert [each.rule for each in check(load(file, environ={})).findings if each.severity == "error"] == ["P125"]
    assert list(KNOWN.iter_errors({"model": {"flavor": "9B"}}))


def test_a_size_without_its_family_may_be_that_of_any() -> None:
    assert list(KNOWN.iter_errors({"model": {"flavor": "32B"}})) == []


def test_the_text_is_json() -> None:
    assert json.loads(schema_text()) == SCHEMA
