"""How far a corpus goes, held against counting it out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.data import coverage
from engine.data.coverage import Cut, counted, cut_of, lengths_of, taken_of
from engine.data.stream import TokenStream


def stream_of(lengths: list[int]) -> TokenStream:
    """Documents of these lengths; their tokens count from 0."""
    starts = np.cumsum([0, *lengths[:-1]])
    ids = np.arange(sum(lengths), dtype=np.uint16)
    cut = len(ids) // 2
    pieces = (ids[:cut], ids[cut:])
    return TokenStream(pieces=pieces, starts=starts, documents=len(lengths), bad_lines=0, bad_files=0, crc32=0)


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=20)


@pytest.fixture(params=[1, 3, 1 << 22], autouse=True, scope="module")
def at_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """So many documents are looked at at once."""
    kept, coverage._AT_ONCE = coverage._AT_ONCE, request.param
    yield
    coverage._AT_ONCE = kept


@given(LENGTHS, st.integers(1, 9))
def test_what_sequences_cut_is_what_counting_finds(lengths: list[int], seq_len: int) -> None:
    stream = stream_of(lengths)
    samples = stream.samples(seq_len)
    windows = stream.windows(np.arange(samples), seq_len)
    since = stream.positions(np.arange(samples), seq_len)
    found = cut_of(stream, seq_len)
    starts = set(np.asarray(stream.starts).tolist())
    assert found.document_starts == sum(int(token) in starts for token in windows[:, 1:].ravel())
    assert found.document_starts == int(np.count_nonzero(since[:, 1:] == 0))
    assert found.longer_documents == sum(length > seq_len for length in lengths)
    if stream.is_shorter_than_a_sample(seq_len):
        assert (found.cut_documents, found.left_out_tokens, found.left_out_documents) == (0, 0, 0)
        return
    read = set(windows.ravel().tolist())
    documents = [set(range(start, start + n)) for start, n in zip(stream.starts, lengths, strict=True)]
    held = [any(document <= set(window.tolist()) for window in windows) for document in documents]
    assert found.cut_documents == sum(
        bool(document & read) and not whole for document, whole in zip(documents, held, strict=True)
    )
    assert found.left_out_tokens == stream.tokens - len(read)
    assert found.left_out_documents == sum(not document & read for document in documents)


def test_lengths_name_the_longest_document_and_its_place() -> None:
    found = lengths_of(stream_of([3, 9, 2, 9]))
    assert (found.longest, found.longest_document, found.longest_begin) == (9, 2, 3)
    assert (found.mean, found.median, found.shortest) == (5.75, 6.0, 2)


def test_c38_corpus_shorter_than_a_sample_is_read_round_and_round() -> None:
    stream = stream_of([5, 5, 5])
    assert cut_of(stream, 2048) == Cut(
        cut_documents=0, longer_documents=0, left_out_tokens=0, left_out_documents=0, document_starts=409
    )
    assert taken_of(stream, 2048, samples=3).epochs == 3 * 2048 / 15


def test_run_that_begins_again_reads_no_more_different_samples_than_there_are() -> None:
    taken = taken_of(stream_of([41]), 10, samples=6)
    assert (taken.samples, taken.different_samples, taken.tokens, taken.epochs) == (6, 4, 60, 1.5)


def test_ids_are_counted_over_all_pieces() -> None:
    told: list[int] = []
    assert counted(stream_of([4, 4]), [1, 5, 9], tokens=8, on_tokens=told.append) == {1: 1, 5: 1, 9: 0}
    assert counted(stream_of([4, 4]), [1, 5, 9], tokens=5, on_tokens=told.append) == {1: 1, 5: 0, 9: 0}
    assert sum(told) == 13
