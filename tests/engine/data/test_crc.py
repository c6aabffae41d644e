"""CRCs of parts are joined as if the parts were one text."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from engine.data.crc import combined


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_crc_of_two_texts_is_that_of_one(first, second):
    assert combined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_the_second_text_may_be_large():
    zeros = bytes(1 << 20)
    assert combined(zlib.crc32(b"x"), zlib.crc32(zeros), len(zeros)) == zlib.crc32(b"x" + zeros)
