"""Lines of one file, read by several: each once, whatever the stretches are."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.data import json_lines
from engine.data.corpus import documents
from engine.data.line_ranges import json_lines_between

LINES = [
    b"\xef\xbb\xbf" + json.dumps({"text": "first"}).encode(),
    b"",
    json.dumps({"text": "é" * 5}).encode(),
    b"no json",
    b"  ",
    json.dumps({"text": ""}).encode(),
    json.dumps({"text": "last"}).encode(),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"\n".join(LINES))
    return path


SIZE = len(b"\n".join(LINES))


@given(st.sets(st.integers(1, SIZE - 1)))
def test_stretches_together_are_the_file(path, cuts):
    bounds = [0, *sorted(cuts), SIZE]
    read = [
        record for begin, end in pairwise(bounds) for record in json_lines_between(path, begin, end, text_field="text")
    ]
    assert read == [*documents("jsonl", str(path))]


@given(st.sets(st.integers(1, SIZE - 1)))
def test_a_line_that_is_too_long_is_told_by_one_stretch(path, cuts):
    bounds = [0, *sorted(cuts), SIZE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "LONGEST_LINE_BYTES", 19)
        read = [
            bad for begin, end in pairwise(bounds) for bad in json_lines_between(path, begin, end, text_field="text")
        ]
        assert read == [*documents("jsonl", str(path))]
        assert sum("longer" in bad.reason for bad in read if not isinstance(bad, str)) == 2


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    (bad,) = json_lines_between(tmp_path / "none", 0, 9, text_field="text")
    assert (bad.line, bad.file) == (None, str(tmp_path / "none"))
