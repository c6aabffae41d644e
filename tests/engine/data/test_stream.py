"""Every sample has one number, every number one reader, whatever the layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.data.index import GlobalIndex, Position
from engine.data.records import Unreadable
from engine.data.stream import TokenStream
from engine.data.tokenising import token_stream
from engine.data.tokenizer import ByteTokenizer
from engine.errors import TitanError


def stream_of(tokens, starts=(0,)):
    values = {"pieces": (np.array(tokens, dtype=np.uint16),), "starts": np.array(starts, dtype=np.int64)}
    return TokenStream(**values, documents=len(starts), bad_lines=0, bad_files=0, crc32=0)


def index_of(**more):
    values = {"sizes": (16,), "data_ranks": 1, "local_batch": 1, "accumulation_steps": 1, "repeat": True}
    return GlobalIndex(**{**values, "shuffle_seed": None, **more})


def numbers_of(index, step):
    """Numbers that all ranks together read in a step, in the order of rank, accumulation, row."""
    return np.concatenate([index.sample_numbers(step, rank).ravel() for rank in range(index.data_ranks)])


def divisors(number):
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


layouts = st.builds(
    index_of,
    sizes=st.tuples(st.integers(1, 40)),
    data_ranks=st.integers(1, 6),
    local_batch=st.integers(1, 5),
    accumulation_steps=st.integers(1, 4),
    shuffle_seed=st.none() | st.integers(0, 1 << 70),
    start=st.builds(Position, step=st.integers(0, 30), samples=st.integers(0, 200)),
)


def bad(number, *, line=None, tolerated=False):
    return Unreadable(file=f"f{number}", line=line, byte_offset=number, reason="odd", tolerated=tolerated)


def test_the_stream_is_the_documents_in_order():
    stream = token_stream(["ab", "", "c"], ByteTokenizer(), skip_unreadable=False)
    assert stream.read(0, stream.tokens).tolist() == [256, 97, 98, 257, 256, 99, 257]
    assert (stream.documents, stream.pieces[0].dtype) == (2, np.uint16)


@given(st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=9), max_size=30), st.integers(1, 40))
def test_the_stream_does_not_depend_on_how_much_is_tokenised_at_once(texts, characters):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.data.tokenising._BATCH_CHARACTERS", characters)
        stream = token_stream(texts, ByteTokenizer(), skip_unreadable=False)
    assert stream.read(0, stream.tokens).tolist() == [id_ for text in texts for id_ in (256, *text.encode(), 257)]
    assert stream.documents == len(texts)


def test_unreadable_records_are_counted_by_kind_when_they_are_skipped():
    records = ["a", bad(1, line=3), bad(2), "b", bad(3, tolerated=True)]
    stream = token_stream(records, ByteTokenizer(), skip_unreadable=True)
    assert (stream.documents, stream.bad_lines, stream.bad_files) == (2, 1, 2)


def test_unreadable_records_are_all_named_or_counted_when_they_are_refused():
    with pytest.raises(TitanError) as caught:
        token_stream([bad(number, line=number) for number in range(1, 14)], ByteTokenizer(), skip_unreadable=False)
    *named, last = caught.value.findings
    assert [(finding.file, finding.line) for finding in named] == [(f"f{number}", number) for number in range(1, 11)]
    assert last.message.startswith("3 more records")


def test_what_a_corpus_tolerates_is_not_refused():
    stream = token_stream([bad(1, tolerated=True), "a"], ByteTokenizer(), skip_unreadable=False)
    assert (stream.documents, stream.bad_files) == (1, 1)


@given(length=st.integers(1, 200), seq_len=st.integers(1, 50))
def test_samples_follow_each_other_and_overlap_in_one_token(length, seq_len):
    stream = stream_of(range(length))
    samples = stream.samples(seq_len)
    windows = stream.windows(np.arange(samples), seq_len)
    assert windows.shape == (samples, seq_len + 1)
    if length > seq_len:
        # Every label once, in order; only less than one sample is left at the end.
        assert windows[:, 1:].ravel().tolist() == list(range(1, samples * seq_len + 1))
        assert length - 1 - samples * seq_len < seq_len
    else:
        assert windows.tolist() == [[place % length for place in range(seq_len + 1)]]


def test_the_stream_knows_where_its_documents_start():
    stream = token_stream(["ab", "", "c"], ByteTokenizer(), skip_unreadable=False)
    assert (stream.starts.tolist(), stream.starts.dtype) == ([0, 4], np.int64)
    assert token_stream([], ByteTokenizer(), skip_unreadable=False).starts.tolist() == []


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30), seq_len=st.integers(1, 40))
def test_positions_start_again_at_every_document_and_window(lengths, seq_len):
    starts = np.cumsum([0, *lengths[:-1]])
    stream = stream_of(range(sum(lengths)), starts)
    indices = np.arange(stream.samples(seq_len))
    windows, positions = stream.windows(indices, seq_len), stream.positions(indices, seq_len)
    for window, row in zip(windows, positions, strict=True):
        expected = 0
        for place, token in enumerate(window):
            expected = 0 if place == 0 or token in starts else expected + 1
            assert row[place] == expected


@given(layouts, st.integers(1, 20))
def test_the_ranks_of_a_step_read_exactly_its_numbers_and_none_twice(index, after):
    step = index.start.step + after
    first = index.start.samples + (after - 1) * index.global_batch
    assert sorted(numbers_of(index, step)) == list(range(first, first + index.global_batch))


@given(layouts, st.integers(1, 20))
def test_an_accumulation_step_is_contiguous_over_ranks_and_rows(index, after):
    step = index.start.step + after
    parts = np.stack([index.sample_numbers(step, rank) for rank in range(index.data_ranks)], axis=1)
    assert np.array_equal(parts.ravel(), index.position(step - 1).samples + np.arange(index.global_batch))


@given(layouts, st.data())
def test_layouts_of_one_global_batch_read_the_same_samples_in_every_step(one, data):
    ranks = data.draw(st.sampled_from(divisors(one.global_batch)))
    local_batch = data.draw(st.sampled_from(divisors(one.global_batch // ranks)))
    accumulation_steps = one.global_batch // ranks // local_batch
    other = replace(one, data_ranks=ranks, local_batch=local_batch, accumulation_steps=accumulation_steps)
    for step in range(one.start.step + 1, one.start.step + 4):
        ours, theirs = (index.places(numbers_of(index, step))[1] for index in (one, other))
        assert sorted(ours) == sorted(theirs)


@given(layouts)
def test_an_epoch_visits_each_sample_once(index):
    for epoch in range(3):
        numbers = np.arange(index.numbers) + epoch * index.numbers
        assert sorted(index.places(numbers)[1]) == list(range(index.numbers))


@given(layouts, layouts, st.integers(0, 10), st.integers(1, 10))
def test_a_run_resumed_in_another_layout_neither_repeats_nor_skips(before, after, stopped, more):
    stop = before.position(before.start.step + stopped)
    resumed = index_of(
        sizes=before.sizes,
        data_ranks=after.data_ranks,
        local_batch=after.local_batch,
        accumulation_steps=after.accumulation_steps,
        start=stop,
    )
    read = [numbers_of(before, before.start.step + step) for step in range(1, stopped + 1)]
    read += [numbers_of(resumed, stop.step + step) for step in range(1, more + 1)]
    last = resumed.position(stop.step + more).samples
    assert sorted(np.concatenate(read)) == list(range(before.start.samples, last))


def test_c31_four_ranks_stopped_after_two_steps_go_on_as_two_with_8_and_9():
    four = index_of(data_ranks=4)
    assert [numbers_of(four, step).tolist() for step in (1, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    two = index_of(data_ranks=2, start=four.position(2))
    assert [two.sample_numbers(3, rank).tolist() for rank in (0, 1)] == [[[8]], [[9]]]


def test_c31_two_ranks_stopped_after_four_steps_go_on_as_four_with_8_to_11():
    two = index_of(data_ranks=2)
    assert np.concatenate([numbers_of(two, step) for step in (1, 2, 3, 4)]).tolist() == list(range(8))
    four = index_of(data_ranks=4, start=two.position(4))
    assert numbers_of(four, 5).tolist() == [8, 9, 10, 11]


def test_c31_the_same_layout_goes_on_as_a_straight_run():
    straight = index_of(data_ranks=4, shuffle_seed=5)
    resumed = index_of(data_ranks=4, shuffle_seed=5, start=straight.position(2))
    for step in (3, 4):
        for rank in range(4):
            here, there = (index.places(index.sample_numbers(step, rank))[1] for index in (straight, resumed))
            assert np.array_equal(here, there)


@pytest.mark.parametrize(
    ("samples", "start", "last"),
    [
        (16, (0, 0), 4),
        (19, (0, 0), 4),
        (20, (0, 0), 5),
        (3, (0, 0), 0),
        (16, (2, 9), 3),
        (16, (7, 16), 7),
        (16, (7, 20), 7),
    ],
)
def test_data_that_does_not_repeat_ends_with_the_last_whole_global_batch(samples, start, last):
    index = index_of(sizes=(samples,), data_ranks=4, repeat=False, start=Position(step=start[0], samples=start[1]))
    assert index.last_step == last


def test_data_that_repeats_has_no_last_step():
    assert index_of().last_step is None


@pytest.mark.parametrize("data_rank", [-1, 4])
def test_a_rank_outside_the_layout_is_our_fault(data_rank):
    with pytest.raises(AssertionError, match="no data rank"):
        index_of(data_ranks=4).sample_numbers(1, data_rank)


def test_a_step_before_the_start_is_our_fault():
    with pytest.raises(AssertionError, match="never back"):
        index_of(start=Position(step=5, samples=20)).sample_numbers(5, 0)
