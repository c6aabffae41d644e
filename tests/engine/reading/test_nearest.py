"""Which known name a misspelled word means."""

import pytest

from engine.reading.nearest import nearest, plain

NAMES = ("seq_len", "steps", "local_batch_size", "global_batch_size")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("seqlen", "seq_len"),
        ("SEQ-LEN", "seq_len"),
        ("step", "steps"),
        ("batch_size", "local_batch_size"),
        ("globl_batch_size", "global_batch_size"),
        ("zzz", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_found(word, name):
    assert nearest(word, NAMES) == name


def test_nothing_is_near_where_there_are_no_names():
    assert nearest("seq_len", ()) is None


@pytest.mark.parametrize(("word", "name"), [("h100", "h100-80"), ("a100", "a100-40"), ("H-100", "h100-80")])
def test_of_names_equally_near_the_first_is_meant(word, name):
    assert nearest(word, ("h100-80", "h100-95", "h100-96", "h200", "a100-40", "a100-80")) == name


def test_of_two_names_that_look_alike_the_first_is_meant():
    assert nearest("a_b", ("ab", "AB")) == "ab"


def test_a_plain_name_has_neither_case_nor_separators():
    assert plain("Warmup-Steps_2") == "warmupsteps2"
