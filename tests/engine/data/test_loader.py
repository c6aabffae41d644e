"""Loaders of all ranks together read the corpus as one process would, and say so when it ends."""

from __future__ import annotations

import json
import time
import tracemalloc

import numpy as np
import pytest

from engine.config import Config
from engine.data.batch import IGNORE, Batch
from engine.data.index import Position
from engine.data.loader import Loader
from engine.data.tokenizer import ByteTokenizer
from engine.errors import TitanError
from engine.keys import with_values
from engine.planner.plan import plan

SMALL = {"training.seq_len": 8, "data.shuffle": False}


def finding(loader_of, keys, **more):
    with pytest.raises(TitanError) as caught:
        loader_of(keys, **more)
    (only,) = caught.value.findings
    assert (only.severity, caught.value.exit_code) == ("error", 2)
    return only


def rows_of_a_step(loader_of, keys, *, ranks, step):
    """The rows that all ranks read in one step, in the order of accumulation, rank, row."""
    parts = [loader_of(keys, ranks=ranks, data_rank=rank).batches(step) for rank in range(ranks)]
    return np.concatenate([batch.tokens_BS for accumulation in zip(*parts, strict=True) for batch in accumulation])


def test_labels_are_the_tokens_one_place_on(loader_of, json_lines):
    path = json_lines("abcdefghijklmnopqrstuvwxyz")
    (batch,) = loader_of({**SMALL, "training.dataset": "jsonl", "training.dataset_path": path}).batches(2)
    assert bytes(batch.tokens_BS[0].tolist()) == b"hijklmno"
    assert bytes(batch.labels_BS[0].tolist()) == b"ijklmnop"


def test_batches_are_what_torch_takes_without_a_copy(loader_of):
    loader = loader_of({"training.seq_len": 256, "training.local_batch_size": 4, "training.global_batch_size": 12})
    batches = loader.batches(1)
    assert len(batches) == 3
    for array in (array for batch in batches for array in (batch.tokens_BS, batch.labels_BS)):
        assert (array.shape, array.dtype, array.dtype.isnative) == ((4, 256), np.int64, True)
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_changing_tokens_changes_no_label(loader_of):
    (batch,) = loader_of({**SMALL, "training.local_batch_size": 1}).batches(1)
    before = batch.labels_BS.copy()
    batch.tokens_BS[:] = -1
    assert np.array_equal(batch.labels_BS, before)


def test_changing_a_batch_changes_no_other(loader_of):
    loader = loader_of(SMALL)
    before = loader.batches(1)[0].tokens_BS.copy()
    loader.batches(1)[0].tokens_BS[:] = 0
    assert np.array_equal(loader.batches(1)[0].tokens_BS, before)


def test_valid_tokens_are_the_labels_that_are_not_ignored(loader_of):
    (batch,) = loader_of(SMALL).batches(1)
    assert batch.valid_tokens == 8
    labels_BS = batch.labels_BS.copy()
    labels_BS[0, 3:5] = IGNORE
    assert (IGNORE, Batch(tokens_BS=batch.tokens_BS, labels_BS=labels_BS).valid_tokens) == (-100, 6)


def masked_and_plain(loader_of, keys, step=1):
    """The first batch of a step with document masks and without."""
    return (loader_of(keys | {"data.document_mask": mask}).batches(step)[0] for mask in (True, False))


def test_c24_positions_and_labels_stay_inside_documents_that_fill_a_sequence(loader_of, json_lines):
    # 3, 5 and 10 tokens: a beginning and an end around each text.
    keys = {**SMALL, "training.dataset": "jsonl", "training.dataset_path": json_lines("a", "bcd", "efghijkl")}
    masked, plain = masked_and_plain(loader_of, keys)
    assert masked.positions_BS.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    assert np.flatnonzero(masked.labels_BS[0] == IGNORE).tolist() == [2, 7]
    assert (masked.valid_tokens, plain.valid_tokens) == (6, 8)
    kept = masked.labels_BS != IGNORE
    assert np.array_equal(masked.labels_BS[kept], plain.labels_BS[kept])
    assert np.array_equal(masked.tokens_BS, plain.tokens_BS)


def test_c24_a_document_goes_on_from_0_in_the_next_sequence(loader_of, json_lines):
    keys = {**SMALL, "training.dataset": "jsonl", "training.dataset_path": json_lines("a", "bcdefghijklmnopq")}
    masked, _ = masked_and_plain(loader_of, keys, step=2)
    assert masked.positions_BS.tolist() == [list(range(8))]
    assert masked.valid_tokens == 8


def test_c24_a_corpus_shorter_than_a_sequence_begins_again_as_another_document(loader_of, json_lines):
    keys = {"training.seq_len": 20, "training.dataset": "jsonl", "training.dataset_path": json_lines("a", "bcd")}
    masked, plain = masked_and_plain(loader_of, keys)
    cycle = [*range(3), *range(5)]
    assert masked.positions_BS.tolist() == [[*cycle, *cycle, *range(3), 0]]
    assert np.flatnonzero(masked.labels_BS[0] == IGNORE).tolist() == [2, 7, 10, 15, 18]
    assert np.array_equal(masked.tokens_BS, plain.tokens_BS)


def test_positions_are_what_torch_takes_without_a_copy(loader_of):
    keys = {"data.document_mask": True, "training.seq_len": 256, "training.local_batch_size": 4}
    (batch,) = loader_of(keys).batches(1)
    array = batch.positions_BS
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == (
        (4, 256),
        np.int64,
        True,
        True,
    )


def test_without_document_masks_there_are_no_positions(loader_of):
    assert loader_of(SMALL).batches(1)[0].positions_BS is None


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("ranks", "local_batch"), [(1, 2), (2, 1), (2, 4), (4, 2), (8, 1)])
def test_every_layout_reads_the_same_global_batch(shuffle, ranks, local_batch, loader_of, json_lines):
    path = json_lines("".join(chr(32 + place % 90) for place in range(300)))
    keys = {"training.seq_len": 8, "data.shuffle": shuffle, "training.dataset": "jsonl", "training.dataset_path": path}
    keys["training.global_batch_size"] = 8
    keys["debug.seed"] = 11
    for step in (1, 5, 6):
        one = rows_of_a_step(loader_of, keys | {"training.local_batch_size": 8}, ranks=1, step=step)
        split = rows_of_a_step(loader_of, keys | {"training.local_batch_size": local_batch}, ranks=ranks, step=step)
        assert np.array_equal(one, split)


def test_shuffling_reads_the_same_samples_in_another_order_by_the_seed(loader_of, json_lines):
    path = json_lines("".join(chr(32 + place % 90) for place in range(300)))
    keys = {"training.seq_len": 8, "training.dataset": "jsonl", "training.dataset_path": path}
    orders = []
    for more in ({"data.shuffle": False}, {"debug.seed": 0}, {"debug.seed": 1}):
        loader = loader_of(keys | more)
        steps = range(1, loader.summary.samples_per_epoch + 1)
        orders.append([loader.batches(step)[0].tokens_BS.tobytes() for step in steps])
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert len({tuple(order) for order in orders}) == 3


def test_any_step_can_be_asked_for_at_any_time(loader_of):
    loader = loader_of({"training.seq_len": 64, "training.local_batch_size": 2})
    forward = [loader.batches(step)[0].tokens_BS for step in range(1, 6)]
    backward = [loader.batches(step)[0].tokens_BS for step in range(5, 0, -1)]
    assert np.array_equal(forward, backward[::-1])


@pytest.mark.parametrize(("before", "stopped", "after"), [(4, 2, 2), (2, 4, 4), (4, 2, 4)])
def test_c31_a_run_goes_on_in_another_layout_where_it_stopped(before, stopped, after, loader_of, json_lines):
    path = json_lines("".join(chr(33 + place) for place in range(64)))
    keys = {"training.seq_len": 4, "data.shuffle": False, "training.dataset": "jsonl", "training.dataset_path": path}
    straight = [loader_of(keys).batches(step)[0].tokens_BS[0] for step in range(1, 17)]
    stop = loader_of(keys, ranks=before).position(stopped)
    assert stop == Position(step=stopped, samples=8)
    for step in (stopped + 1, stopped + 2):
        first = 8 + (step - stopped - 1) * after
        found = [loader_of(keys, ranks=after, data_rank=r, start=stop).batches(step)[0].tokens_BS for r in range(after)]
        assert np.array_equal(np.concatenate(found), straight[first : first + after])


def test_c37_all_ranks_end_after_the_same_step_and_say_why(loader_of, json_lines):
    # 5 samples of 4 tokens: as shards of its own rank 0 would have 3 and rank 1 have 2.
    path = json_lines("x" * (5 * 4 + 1 - 2))
    keys = {"training.seq_len": 4, "data.repeat": False, "training.dataset": "jsonl", "training.dataset_path": path}
    for rank in (0, 1):
        loader = loader_of(keys, ranks=2, data_rank=rank)
        assert (loader.steps_available, loader.summary.steps_available) == (2, 2)
        assert [loader.batches(step) is None for step in (1, 2, 3, 4)] == [False, False, True, True]
        assert loader.end_message == (
            "the data ended after step 2 on all data ranks: 5 sequences in all, 2 a step; "
            "the 1 sequence left make no whole global batch"
        )
    assert "data for 2 of 1,000 steps" in loader.summary.text


def test_a_run_resumed_at_the_end_of_its_data_ends_at_once(loader_of, json_lines):
    path = json_lines("x" * 15)
    keys = {"training.seq_len": 4, "data.repeat": False, "training.dataset": "jsonl", "training.dataset_path": path}
    loader = loader_of(keys, start=loader_of(keys).position(4))
    assert (loader.steps_available, loader.batches(5)) == (4, None)


@pytest.mark.parametrize("dataset", ["jsonl", "text"])
@pytest.mark.parametrize("repeat", [True, False])
def test_c38_an_empty_file_is_refused_at_once(dataset, repeat, loader_of, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    begin = time.monotonic()
    keys = {"training.dataset": dataset, "training.dataset_path": str(tmp_path / "empty"), "data.repeat": repeat}
    only = finding(loader_of, keys)
    assert (only.rule, only.key) == ("D205", "training.dataset_path")
    assert "0 documents" in only.message
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("dataset", ["jsonl", "text"])
def test_a_folder_without_a_file_of_the_kind_is_refused(dataset, loader_of, tmp_path):
    (tmp_path / "picture.png").write_bytes(b"x")
    keys = {"training.dataset": dataset, "training.dataset_path": str(tmp_path)}
    assert "0 documents" in finding(loader_of, keys).message


def test_c38_too_few_tokens_without_repeat_are_refused_with_both_numbers(loader_of, json_lines):
    path = json_lines("abc", "def", "ghi")
    keys = {"training.dataset": "jsonl", "training.dataset_path": path, "data.repeat": False}
    only = finding(loader_of, keys | {"training.seq_len": 2048})
    assert "3 documents" in only.message
    assert "15 tokens < 2048" in only.message


@pytest.mark.parametrize(("seq_len", "enough"), [(14, True), (15, False), (16, False)])
def test_c38_one_sequence_needs_a_token_more_for_its_last_label(seq_len, enough, loader_of, json_lines):
    keys = {"training.dataset": "jsonl", "training.dataset_path": json_lines("abc", "def", "ghi"), "data.repeat": False}
    keys["training.seq_len"] = seq_len
    if enough:
        assert loader_of(keys).steps_available == 1
    else:
        assert f"15 tokens < {seq_len}" in finding(loader_of, keys).message
        healed = keys | {"training.seq_len": 14}
        assert finding(loader_of, keys).fix.startswith("set it to 14 or less")
        assert loader_of(healed).steps_available == 1


def test_c38_without_repeat_less_than_one_global_batch_is_refused(loader_of, json_lines):
    keys = {"training.dataset": "jsonl", "training.dataset_path": json_lines("x" * 29), "data.repeat": False}
    keys["training.seq_len"] = 10
    assert "3 sequences < 4 of one step" in finding(loader_of, keys, ranks=4).message
    assert loader_of(keys, ranks=3).steps_available == 1


def test_c38_with_repeat_a_short_corpus_is_read_in_cycles_and_its_passes_are_counted(loader_of, json_lines):
    keys = {"training.dataset": "jsonl", "training.dataset_path": json_lines("abc", "def", "ghi")}
    loader = loader_of(keys | {"training.seq_len": 2048, "training.steps": 30})
    cycle = np.concatenate(ByteTokenizer().encode(["abc", "def", "ghi"]))
    assert len(cycle) == 15
    for step in (1, 2, 30):
        (batch,) = loader.batches(step)
        assert np.array_equal(batch.tokens_BS[0], np.resize(cycle, 2048))
        assert np.array_equal(batch.labels_BS[0], np.resize(cycle, 2049)[1:])
    assert loader.summary.epochs_needed == pytest.approx(30 * 2048 / 15)
    assert loader.steps_available is None


@pytest.fixture
def cut_lines(tmp_path):
    lines = [json.dumps({"text": f"document {number} ä"}, ensure_ascii=False).encode() for number in range(5)]
    lines[2] = lines[2][:12]
    path = tmp_path / "cut.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_c38_a_cut_line_is_refused_with_its_file_line_and_byte_offset(cut_lines, loader_of):
    keys = {"training.dataset": "jsonl", "training.dataset_path": str(cut_lines)}
    only = finding(loader_of, keys)
    byte_offset = cut_lines.read_bytes().split(b"\n", 2)
    expected = len(byte_offset[0]) + len(byte_offset[1]) + 2
    assert (only.rule, only.file, only.line) == ("D204", str(cut_lines), 3)
    assert f"line 3 (byte offset {expected})" in only.message
    assert f"{cut_lines}:3" in str(only)


def test_c38_a_cut_line_is_skipped_and_counted_where_that_is_asked_for(cut_lines, loader_of):
    keys = {"training.dataset": "jsonl", "training.dataset_path": str(cut_lines), "data.on_bad_line": "skip"}
    summary = loader_of(keys | {"training.seq_len": 8}).summary
    assert (summary.documents, summary.bad_lines) == (4, 1)
    assert "4 documents" in summary.text
    assert "1 bad line left out" in summary.text


def test_c40_a_tokenizer_larger_than_the_model_is_refused_before_the_corpus_is_read(loader_of):
    keys = {"model.shape.vocab_size": 200, "training.dataset": "jsonl", "training.dataset_path": "gone.jsonl"}
    assert "200 is 58 short" in finding(loader_of, keys).message


def test_the_summary_says_what_was_read(loader_of, json_lines):
    keys = {"training.dataset": "jsonl", "training.dataset_path": json_lines("x" * 39, "y" * 58)}
    keys |= {"training.seq_len": 10, "training.steps": 25, "training.local_batch_size": 2}
    summary = loader_of(keys, ranks=2).summary
    assert summary.text == "jsonl: 2 documents, 101 tokens (bytes), 10 sequences an epoch, 10.00 epochs to read"
    assert (summary.vocab_used, summary.bad_files, summary.steps_available) == (258, 0, None)


def test_the_checksum_is_equal_where_the_text_is_and_differs_where_it_is_not(loader_of, json_lines):
    def crc32(*texts, **more):
        path = json_lines(*texts)
        return loader_of({**SMALL, "training.dataset": "jsonl", "training.dataset_path": path}, **more).summary.crc32

    assert crc32("one", "two") == crc32("one", "two", ranks=2, data_rank=1)
    assert crc32("one", "two") != crc32("two", "one")


def test_the_stdlib_is_read_in_little_time(loader_of):
    begin = time.process_time()
    loader = loader_of({"training.seq_len": 256, "training.local_batch_size": 8})
    assert time.process_time() - begin < 1.5
    assert loader.summary.tokens > 1_000_000
    assert loader.summary.documents > 300


def test_the_stdlib_is_read_in_less_than_200_mib(loader_of):
    tracemalloc.start()
    try:
        loader_of({"training.seq_len": 256})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 20 << 20 < peak_bytes < 200 << 20


def test_every_record_that_is_read_is_noted_so_that_a_long_corpus_is_no_standstill(json_lines):
    keys = {"training.dataset": "jsonl", "training.dataset_path": json_lines("one text", "another", "a third")}
    config = with_values(Config(), {"cluster.gpu": "cpu", "cluster.gpus_per_node": 1, "training.seq_len": 4} | keys)
    noted: list[None] = []
    Loader(config, plan(config), data_rank=0, on_record=lambda: noted.append(None))
    assert len(noted) == 3


@pytest.fixture
def mixed(json_lines):
    """Keys of a mixture of three parts of digits and one of letters."""
    paths = {
        json_lines("".join(str(place % 10) for place in range(400)), name="digits.jsonl"): 3.0,
        json_lines("".join(chr(97 + place % 26) for place in range(90)), name="letters.jsonl"): 1.0,
    }
    return {"training.dataset": "jsonl", "data.mixture": paths, "training.seq_len": 8, "data.repeat": True}


def test_a_mixture_is_read_at_its_weights_and_each_corpus_in_epochs_of_its_own(loader_of, mixed):
    loader = loader_of(mixed | {"training.local_batch_size": 64, "training.steps": 128})
    rows = np.concatenate([loader.batches(step)[0].tokens_BS for step in range(1, 129)])
    letters = np.array([(row[(row < 256)] >= 97).any() for row in rows])
    assert letters.sum() == 128 * 64 // 4
    digits, words = loader.summary.corpora
    assert (digits.share, words.share) == (0.75, 0.25)
    assert words.epochs_needed == pytest.approx(2048 / words.samples_per_epoch)
    assert len({row.tobytes() for row in rows[letters]}) == words.samples_per_epoch


def test_a_mixture_reads_the_same_global_batch_in_every_layout(loader_of, mixed):
    keys = mixed | {"training.global_batch_size": 8}
    for step in (1, 7):
        one = rows_of_a_step(loader_of, keys | {"training.local_batch_size": 8}, ranks=1, step=step)
        split = rows_of_a_step(loader_of, keys | {"training.local_batch_size": 1}, ranks=4, step=step)
        assert np.array_equal(one, split)


def test_a_mixture_that_does_not_repeat_ends_with_the_corpus_that_ends_first(loader_of, mixed):
    loader = loader_of(mixed | {"data.repeat": False, "data.shuffle": False})
    # 11 samples of letters, every fourth number on average: the run ends before a twelfth.
    assert 36 <= loader.steps_available <= 52
    assert "letters.jsonl is the corpus that ends first" in loader.end_message
    assert loader.batches(loader.steps_available + 1) is None


def test_other_weights_orders_and_seeds_of_a_mixture_are_another_identity(loader_of, mixed):
    digits, letters = mixed["data.mixture"]
    weights = mixed | {"data.mixture": {digits: 1.0, letters: 1.0}}
    order = mixed | {"data.mixture": {letters: 1.0, digits: 3.0}}
    seed = mixed | {"debug.seed": 1}
    plain = {"data.shuffle": False}
    found = [loader_of(keys | plain).summary.identity["mixture"] for keys in (mixed, weights, order, seed)]
    assert len({*found}) == 4
    assert found[0].startswith("75 % crc ")


def test_the_same_text_at_another_path_is_the_same_identity(loader_of, mixed, json_lines):
    digits, letters = mixed["data.mixture"]
    moved = json_lines("".join(str(place % 10) for place in range(400)), name="moved.jsonl")
    other = mixed | {"data.mixture": {moved: 3.0, letters: 1.0}}
    assert digits != moved
    assert loader_of(mixed).summary.identity == loader_of(other).summary.identity
