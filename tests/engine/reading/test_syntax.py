"""What is wrong with a text that is not TOML, with line and column."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reading.syntax import syntax_finding


def finding_of(text):
    with pytest.raises((ValueError, RecursionError)) as error:
        tomllib.loads(text)
    return syntax_finding(error.value, text, "run.toml")


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a = 1\nb = ", 2, 4, "this is no value"),
        ("a = 1\nb = llama3\n", 2, 5, "this is no value"),
        ("[training\nx = 1", 1, 10, "the header is not closed"),
        ("[[training]\nx = 1", 1, 11, "the header is not closed"),
        ("seq_len 4", 1, 9, "there is no = after the key"),
        ("\n\nseq_len", 3, 8, "there is no = after the key"),
        ("a = 1\na = 2", 2, 6, "the key is given twice"),
        ("a = {b = 1, b = 2}", 1, 18, "the key is given twice"),
        ("[a]\n[b]\n[a]", 3, 3, "[a] is given twice"),
        ("[a.b]\nc = 1\n[a]\nb.d = 1", 4, 8, "the table is given twice"),
        ('a = "open\nb = 1', 1, 10, "the quotes are not closed"),
        ("a = 'open", 1, 10, "the quotes are not closed"),
        ('a = """open\n', 1, 12, "the quotes are not closed"),
        ("a = [1, 2", 1, 10, "the [ is not closed"),
        ("a = {b = 1", 1, 11, "the { is not closed"),
        ("a = 1 b = 2", 1, 7, "the line goes on after the value"),
        ('a = "C:\\data"', 1, 10, "a backslash in quotes needs another"),
        ("= 1", 1, 1, "this is no key"),
    ],
)
def test_a_fault_is_placed_and_put_in_words(text, line, column, words):
    finding = finding_of(text)
    assert finding.message == f"not TOML: line {line}, column {column}: {words}"
    assert (finding.rule, finding.file, finding.line, finding.key) == ("S103", "run.toml", line, "")
    assert finding.fix


def test_a_windows_text_has_the_same_line_and_column():
    assert finding_of("a = 1\r\nb = \r\n").message == finding_of("a = 1\nb = \n").message


@pytest.mark.parametrize(("text", "words"), [("a = " + "[" * 5000, "too deep"), ("a = " + "9" * 5000, "too long")])
def test_a_text_that_breaks_the_parser_is_a_finding(text, words):
    assert words in finding_of(text).message


@given(st.text(alphabet="a1 =.[]{}\"'\\\n,#é", max_size=20))
def test_any_text_that_is_not_toml_gets_a_place_and_a_fix(text):
    try:
        tomllib.loads(text)
    except ValueError as error:
        finding = syntax_finding(error, text, "run.toml")
        assert finding.line is not None
        assert 1 <= finding.line <= text.count("\n") + 1
        assert finding.fix
        assert "\n" not in finding.message
