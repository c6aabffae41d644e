"""From records to a stream in memory: what is left out is kept to be told."""

from __future__ import annotations

from engine.data.records import Unreadable
from engine.data.tokenising import token_stream
from engine.data.tokenizer import ByteTokenizer


def test_c38_first_records_that_are_left_out_are_kept_with_the_stream() -> None:
    bad = [Unreadable(file="a", line=line, byte_offset=0, reason="it is not JSON") for line in range(1, 13)]
    stream = token_stream(["a", *bad], ByteTokenizer(), skip_unreadable=True)
    assert (stream.bad_lines, stream.bad) == (12, tuple(bad[:10]))
