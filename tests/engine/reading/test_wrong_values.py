"""What is said about a value that cannot stand at its key."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.config import Config
from engine.keys import field_types, nested
from engine.reading.origins import Origin
from engine.reading.wrong_values import complaint, shown

FILE, FLAG = Origin("file", "run.toml", 3), Origin("flag", name="--a.b")


@pytest.mark.parametrize(
    ("key", "value", "message", "fix"),
    [
        ("training.seq_len", "8", '"8" is text; seq_len wants a whole number of at least 1', "write 8, without quotes"),
        ("training.seq_len", True, "true is a boolean; seq_len wants a whole number of at least 1", None),
        ("training.seq_len", 0, "0 is too small; seq_len wants a whole number of at least 1", None),
        ("training.seq_len", 8.0, "8.0 is not written as a whole number; seq_len wants a whole number", "write 8"),
        ("training.seq_len", 8.5, "8.5 is not written as a whole number; seq_len wants a whole number", None),
        ("training.seq_len", "", "nothing is given; seq_len wants a whole number of at least 1", None),
        ("training.seq_len", [1], "[1] is a list; seq_len wants a whole number of at least 1", None),
        ("training.seq_len", {"x": 1}, "a table is given; seq_len wants a whole number of at least 1", None),
        ("training.seq_len", 2**64, "is more than 64 bits can hold; seq_len wants a whole number of at least 1", None),
        ("training.seq_len", "99999999999999999999", "is text; seq_len wants a whole number of at least 1", None),
        ("optimizer.lr", "1e-3", '"1e-3" is text; lr wants a number of at least 0', "write 0.001, without quotes"),
        ("optimizer.lr", float("nan"), "nan is not a number; lr wants", "set it to a number of at least 0"),
        ("optimizer.lr", float("inf"), "inf is too large; lr wants", "set it to a number of at least 0"),
        ("optimizer.lr", float("-inf"), "-inf is too small; lr wants", "set it to a number of at least 0"),
        ("optimizer.beta1", 1, "1 is too large; beta1 wants a number of at least 0 and below 1", None),
        ("cluster.memory_gib", 1e9, "1000000000.0 is too large; memory_gib wants a number from 0.001 to 1000000", None),
        ("cluster.hbm_tbyte_per_s", 1e-320, "1e-320 is too small; hbm_tbyte_per_s wants a number from 1e-06", None),
        ("optimizer.eps", 0, "0 is too small; eps wants a number above 0", None),
        ("compile.enable", 1, "1 is a number; enable wants true or false", "write true"),
        ("compile.enable", 2, "2 is a number; enable wants true or false", "set it to true or false"),
        ("compile.enable", "True", '"True" is text; enable wants true or false', "write true, without quotes"),
        ("compile.enable", "off", '"off" is text; enable wants true or false', "write false, without quotes"),
        ("model.flavor", 8, "8 is a number; flavor wants text", 'put it in quotes: "8"'),
        ("model.flavor", False, "false is a boolean; flavor wants text", 'put it in quotes: "false"'),
        ("launch.slurm.time", datetime.time(12), "12:00:00 is a date or time; time wants text", '"12:00:00"'),
        ("model.name", "LLaMA-3", '"LLaMA-3" is not one of the choices; name wants one of llama3', 'write "llama3"'),
        ("model.name", "gpt", '"gpt" is not one of the choices; name wants one of llama3, llama2, qwen3', "set it to"),
        ("cluster.gpus_per_node", "eight", 'wants a whole number of at least 1, or "auto"', "set it to"),
        (
            "training.local_batch_size",
            "AUTO",
            'local_batch_size wants a whole number of at least 1, or "auto"',
            '"auto"',
        ),
        ("compile.components", "model", '"model" is text; components wants a list of text', 'write ["model"]'),
        ("compile.components", ["model", 1], "the list holds 1; components wants a list of text", "write a list: "),
        (
            "data.mixture",
            {"a": -1},
            "the table is {a = -1}; mixture wants a table of names with numbers above 0",
            "write",
        ),
        ("data.mixture", "a", '"a" is text; mixture wants a table of names with numbers above 0', "write a table: "),
        ("job.name", "a\udcff", '"a\\udcff" holds bytes that are not UTF-8; name wants text', "set it to text"),
        ("job.name", "a\0", '"a\\u0000" holds a NUL character; name wants text', "set it to text"),
        ("compile.components", ["a\udcff"], "holds bytes that are not UTF-8; components wants", "write a list: "),
        ("data.mixture", {"a\0": 1}, "holds a NUL character; mixture wants", "write a table: "),
        ("compile.components", [2**64], "holds a number of more than 64 bits; components wants", "write a list: "),
    ],
)
def test_a_complaint_says_what_is_given_what_is_wanted_and_the_way_out(key, value, message, fix):
    said, way_out = complaint(key, value, FILE)
    assert message in said
    assert (fix or "set it to a ") in way_out


@pytest.mark.parametrize(
    ("key", "value", "fix"), [("training.steps", "08", "write 8"), ("model.name", "lama3", "write llama3")]
)
def test_a_flag_is_not_told_about_quotes(key, value, fix):
    assert complaint(key, value, FLAG)[1] == fix


def test_a_long_value_is_cut():
    assert len(shown("x" * 1000)) == 40


def test_a_value_of_several_lines_is_shown_in_one():
    assert shown("a\nb\x1b[31m") == '"a\\nb\\u001b[31m"'


def test_a_number_of_more_than_64_bits_is_shown_as_it_was_written():
    assert shown(10**30) == "1" + "0" * 30


def test_a_number_of_ten_thousand_digits_is_shown():
    assert shown([16**10_000]).startswith("[0x1000")


VALUES = st.recursive(
    st.one_of(
        st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.dates(), st.datetimes(), st.times(),
        st.sampled_from(["auto", "op", "1", "llama3", "bfloat16"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@given(st.sampled_from(sorted(field_types())), VALUES)
def test_whatever_the_config_refuses_there_is_a_complaint_and_a_way_out(key, value):
    try:
        Config.model_validate(nested({key: value}))
    except ValidationError:
        message, fix = complaint(key, value, FILE)
        assert message.endswith(complaint(key, [[]], FILE)[0].rpartition("; ")[2])
        assert fix
        assert "\n" not in message + fix
