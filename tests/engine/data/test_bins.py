"""Token ids that others have written are read as they were meant."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest

from engine.data.bin_formats import bin_files
from engine.data.bins import bin_parts, bin_stream
from engine.data.tokenizer import ByteTokenizer
from engine.errors import TitanError

KEY = "training.dataset_path"
BOS, EOS = ByteTokenizer.bos_id, ByteTokenizer.eos_id


def stream(path, vocab_size=None):
    return bin_stream(str(path), key=KEY, tokenizer=ByteTokenizer(), vocab_size=vocab_size)


def plain(folder, ids, name="x.bin", dtype="<u2"):
    path = folder / name
    np.array(ids, dtype=dtype).tofile(path)
    return path


def llm_c(folder, ids, *, name="x.bin", magic=20240520, version=1, dtype="<u2", tokens=None):
    head = np.zeros(256, dtype="<i4")
    head[:3] = magic, version, len(ids) if tokens is None else tokens
    path = folder / name
    path.write_bytes(head.tobytes() + np.array(ids, dtype=dtype).tobytes())
    return path


def megatron(folder, documents, *, code=8, dtype="<u2", name="x", places=None):
    """`documents`: lists of sequences, each a list of ids."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], dtype="<i4")
    if places is None:
        places = np.cumsum(lengths) * np.dtype(dtype).itemsize - lengths * np.dtype(dtype).itemsize
    firsts = np.cumsum([0, *(len(document) for document in documents)])
    np.concatenate([np.array(sequence, dtype=dtype) for sequence in sequences]).tofile(folder / f"{name}.bin")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, code, len(sequences), len(firsts))
    (folder / f"{name}.idx").write_bytes(
        head + lengths.tobytes() + np.array(places, dtype="<i8").tobytes() + firsts.astype("<i8").tobytes()
    )
    return folder / name


def refused(path, rule):
    with pytest.raises(TitanError) as caught:
        stream(path)
    assert [finding.rule for finding in caught.value.findings] == [rule]
    return caught.value.findings[0]


def test_plain_ids_are_of_two_bytes(tmp_path):
    read = stream(plain(tmp_path, [5, 6, 7]))
    assert read.read(0, 3).tolist() == [5, 6, 7]
    assert (read.tokens, read.crc32) == (3, zlib.crc32(np.array([5, 6, 7], dtype="<u2").tobytes()))


def test_a_file_beside_them_says_that_plain_ids_are_of_four_bytes(tmp_path):
    path = plain(tmp_path, [70_000, 6], dtype="<u4")
    (tmp_path / "x.bin.json").write_text(json.dumps({"dtype": "uint32"}))
    assert stream(path).read(0, 2).tolist() == [70_000, 6]


def test_plain_ids_of_four_bytes_are_not_read_as_of_two(tmp_path):
    assert "uint32" in refused(plain(tmp_path, range(100, 200), dtype="<u4"), "D224").fix


def test_documents_begin_after_the_end_of_text(tmp_path):
    assert stream(plain(tmp_path, [1, EOS, 2, 3, EOS, 4, EOS])).starts.tolist() == [0, 2, 5]


def test_documents_begin_at_the_beginning_of_text_where_the_first_does(tmp_path):
    assert stream(plain(tmp_path, [BOS, 1, EOS, BOS, 2, 3])).starts.tolist() == [0, 3]


def test_ids_without_special_tokens_are_one_document(tmp_path):
    read = stream(plain(tmp_path, [1, 2, 3]))
    assert (read.starts.tolist(), read.documents) == ([0], 1)


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")])
def test_llm_c_says_how_its_ids_are_written(magic, version, dtype, tmp_path):
    read = stream(llm_c(tmp_path, [BOS, 7, 8, BOS, 9], magic=magic, version=version, dtype=dtype))
    assert (read.read(0, 5).tolist(), read.starts.tolist()) == ([BOS, 7, 8, BOS, 9], [0, 3])


def test_llm_c_of_another_version_or_length_is_refused(tmp_path):
    assert "version 2" in refused(llm_c(tmp_path, [1], version=2), "D224").message
    assert "its head says 5 tokens" in refused(llm_c(tmp_path, [1], tokens=5), "D224").message


@pytest.mark.parametrize(("code", "dtype"), [(8, "<u2"), (4, "<i4"), (5, "<i8")])
def test_megatron_says_where_documents_start(code, dtype, tmp_path):
    read = stream(megatron(tmp_path, [[[1, 2], [3]], [[4, 5, 6]], [[7]]], code=code, dtype=dtype))
    assert read.read(0, 7).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert (read.starts.tolist(), read.documents) == ([0, 3, 6], 3)


@pytest.mark.parametrize("name", ["x", "x.idx", "x.bin"])
def test_megatron_is_named_by_its_prefix_or_either_file(name, tmp_path):
    megatron(tmp_path, [[[1, 2]], [[3]]])
    assert stream(tmp_path / name).starts.tolist() == [0, 2]


@pytest.mark.parametrize("part_ids", [1, 2, 3, 5, 100])
def test_documents_start_in_the_same_places_however_the_ids_are_parted(part_ids, tmp_path):
    path = megatron(tmp_path, [[[1, 2], [3]], [[4]], [[5, 6, 7]], [[8]]])
    parts = bin_parts(bin_files(str(path), key=KEY), ByteTokenizer(), part_ids=part_ids)
    starts = [part.starts_in(part.ids[:], 0) + number * part_ids for number, part in enumerate(parts)]
    assert np.concatenate(starts).tolist() == [0, 3, 4, 7]


def test_megatron_whose_sequences_do_not_follow_each_other_is_refused(tmp_path):
    refused(megatron(tmp_path, [[[1, 2], [3, 4], [5]]], places=[2, 0, 8]), "D224")


def test_megatron_that_was_cut_is_refused(tmp_path):
    megatron(tmp_path, [[[1, 2, 3]]])
    (tmp_path / "x.bin").write_bytes(b"\x01\x00")
    assert "other than its index" in refused(tmp_path / "x.bin", "D224").message
    (tmp_path / "x.idx").write_bytes((tmp_path / "x.idx").read_bytes()[:-4])
    assert "cut off" in refused(tmp_path / "x.bin", "D224").message


def test_files_of_a_folder_follow_in_the_order_of_their_names(tmp_path):
    plain(tmp_path, [3, 4], name="b.bin")
    llm_c(tmp_path, [BOS, 2], name="a.bin")
    megatron(tmp_path, [[[5], [6]], [[7]]], name="c")
    read = stream(tmp_path)
    assert read.read(0, 7).tolist() == [BOS, 2, 3, 4, 5, 6, 7]
    assert read.starts.tolist() == [0, 4, 6]


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    with pytest.raises(TitanError, match="ids up to 300"):
        stream(plain(tmp_path, [1, 300]), vocab_size=300)


def test_a_negative_id_is_beyond_every_vocabulary(tmp_path):
    with pytest.raises(TitanError, match="D223"):
        stream(megatron(tmp_path, [[[1, -1]]], code=4, dtype="<i4"), vocab_size=1 << 40)


def test_a_folder_without_ids_and_a_missing_path_are_refused(tmp_path):
    assert "no *.bin" in refused(tmp_path, "D202").message
    refused(tmp_path / "none", "D202")


def test_a_preparation_that_was_interrupted_is_not_read_as_plain_ids(tmp_path):
    plain(tmp_path, [1, 2], name="tokens-00000.bin")
    (tmp_path / "parts").mkdir()
    assert "again" in refused(tmp_path, "D220").fix


def test_a_file_without_ids_is_an_empty_stream(tmp_path):
    read = stream(plain(tmp_path, []))
    assert (read.tokens, read.documents) == (0, 0)
