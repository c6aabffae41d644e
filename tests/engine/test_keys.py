"""Dotted keys: reading, replacing, nesting."""

import pytest
from pydantic import ValidationError

from engine.config import Config
from engine.keys import field_docs, field_types, nested, value_of, with_legal_values, with_values


def test_sections_are_not_keys():
    assert not {"training", "quantize", "quantize.dense", "model.shape"} & field_types().keys()


def test_keys_come_in_the_order_of_the_sections():
    assert list(field_types())[:3] == ["job.name", "job.description", "job.dump_folder"]


def test_nothing_but_keys_is_documented():
    assert field_docs().keys() == field_types().keys()


def test_the_text_of_a_key_is_the_one_under_its_field():
    assert field_docs()["training.seq_len"] == "Tokens of one training sequence."


@pytest.mark.parametrize(
    ("key", "value"),
    [("training.seq_len", 2048), ("quantize.dense.float8.recipe_name", "tensorwise"), ("model.shape.dim", None)],
)
def test_a_value_is_found_by_its_dotted_key(key, value):
    assert value_of(Config(), key) == value


@pytest.mark.parametrize(
    "key", ["", "training.", "training.nope", "seq_len", "training.seq_len.x", "data.mixture.a", "."]
)
def test_a_key_that_does_not_exist_raises_with_its_name(key):
    with pytest.raises(KeyError) as error:
        value_of(Config(), key)
    assert error.value.args == (key,)


def test_dotted_keys_nest():
    assert nested({"a.b.c": 1, "a.b.d": 2, "a.e": 3, "f": 4}) == {"a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": 4}


def test_replacing_leaves_the_original_as_it_was():
    config = Config()
    other = with_values(config, {"training.seq_len": 64, "quantize.dense.float8.enable": True})
    assert (other.training.seq_len, other.quantize.dense.float8.enable) == (64, True)
    assert config == Config()


def test_replacing_nothing_changes_nothing():
    assert with_values(Config(), {}) == Config()


@pytest.mark.parametrize("values", [{"training.seq_len": "8"}, {"training.nope": 1}])
def test_replacing_checks_like_a_file(values):
    with pytest.raises(ValidationError):
        with_values(Config(), values)


def test_legal_values_need_no_check():
    values = {"training.seq_len": 4096, "quantize.dense.float8.enable": True, "quantize.dense.mx.emulate": True}
    assert with_legal_values(Config(), values) == with_values(Config(), values)
