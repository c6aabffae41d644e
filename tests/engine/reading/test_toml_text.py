"""What is written as TOML is read back as it was."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import Config
from engine.keys import field_types, nested
from engine.reading.toml_text import to_toml, toml_key, toml_value
from engine.reading.wants import want
from engine.sources import load

# A config holds no NUL.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def values_of(key):
    """Any value that this key may have."""
    wanted = want(key)
    kinds = []
    if "whole" in wanted.kinds:
        low = -1 if wanted.at_least is None else int(wanted.at_least)
        high = 2**63 - 1 if wanted.at_most is None else int(wanted.at_most)
        kinds.append(st.integers(low, high))
    if "number" in wanted.kinds:
        low = wanted.above if wanted.above is not None else wanted.at_least
        high = wanted.below if wanted.below is not None else wanted.at_most
        kinds.append(
            st.floats(
                low, high, exclude_min=wanted.above is not None, exclude_max=wanted.below is not None,
                allow_nan=False, allow_infinity=False,
            )
        )  # fmt: skip
    if "boolean" in wanted.kinds:
        kinds.append(st.booleans())
    if "text" in wanted.kinds:
        kinds.append(TEXTS)
    if "list" in wanted.kinds:
        kinds.append(st.lists(TEXTS))
    if "table" in wanted.kinds:
        kinds.append(st.dictionaries(TEXTS, st.floats(0, exclude_min=True, allow_infinity=False)))
    if wanted.choices:
        kinds.append(st.sampled_from(wanted.choices))
    return st.one_of(kinds)


CONFIGS = st.fixed_dictionaries({}, optional={key: values_of(key) for key in field_types()}).map(
    lambda values: Config.model_validate(nested(values))
)


@settings(deadline=None, max_examples=60)
@given(CONFIGS)
def test_a_config_is_read_back_equal(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "run.toml"
    path.write_text(to_toml(config), "utf-8")
    loaded = load(path, environ={})
    assert loaded.findings == ()
    assert loaded.config == config


@given(st.recursive(st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_a_value_is_read_back_equal(value):
    text = toml_value(value)
    assert "\n" not in text
    assert tomllib.loads(f"value = {text}") == {"value": value}


@given(st.text())
def test_a_key_is_read_back_equal(name):
    assert tomllib.loads(f"{toml_key(name)} = 1") == {name: 1}


@pytest.mark.parametrize(("name", "written"), [("seq_len", "seq_len"), ("a.b", '"a.b"'), ("", '""'), ("é", '"é"')])
def test_a_key_has_quotes_where_it_needs_them(name, written):
    assert toml_key(name) == written


def test_a_key_without_a_value_is_left_out():
    assert "decay_ratio" not in to_toml(Config())


def test_sections_come_in_the_order_of_the_config_and_keys_below_them():
    text = to_toml(Config.model_validate({"model": {"shape": {"dim": 64}}, "data": {"mixture": {"a b": 0.5}}}))
    headers = [line for line in text.splitlines() if line.startswith("[")]
    assert headers[:6] == ["[job]", "[cluster]", "[model]", "[model.shape]", "[training]", "[parallelism]"]
    assert text.startswith('[job]\nname = ""\n')
    assert "\n\n[model.shape]\ndim = 64\n\n[training]\n" in text
    assert 'mixture = {"a b" = 0.5}\n' in text


def test_c51_the_same_config_is_the_same_text_wherever_it_came_from(tmp_path):
    (tmp_path / "a.toml").write_text("[training]\nsteps = 5\n[job]\nname = 'x'\n")
    (tmp_path / "b.toml").write_text("job = {name = 'x'} # the same\ntraining.steps = 0x5\n")
    assert to_toml(load(tmp_path / "a.toml", environ={}).config) == to_toml(
        load(tmp_path / "b.toml", environ={}).config
    )
