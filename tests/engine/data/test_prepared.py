"""A prepared folder is opened as it was made, or refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from engine.config import Config
from engine.data.prepare import prepare
from engine.data.prepared import open_prepared
from engine.data.reads import Named
from engine.data.survey import survey
from engine.data.tokenizer import ByteTokenizer
from engine.errors import TitanError

KEY = "training.dataset_path"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    named = Named(dataset="text", path=str(tmp_path / "a.txt"), key=KEY)
    prepare(survey(named, Config(), ByteTokenizer()), tmp_path / "out", workers=0)
    return tmp_path / "out"


def refused(folder, rule, **more):
    with pytest.raises(TitanError) as caught:
        open_prepared(folder, key=KEY, **more)
    assert [finding.rule for finding in caught.value.findings] == [rule]
    return caught.value.findings[0]


def rewrite(folder, **values):
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | values))


def test_opening_maps_and_reads_no_ids(folder):
    stream = open_prepared(folder, key=KEY)
    assert stream.pieces[0].count == 11
    assert isinstance(stream.starts, np.memmap)


def test_a_folder_without_an_index_is_refused(tmp_path):
    assert "prepare" in refused(tmp_path, "D220").fix


@pytest.mark.parametrize("values", [{"version": 2}, {"format": "else"}, {"shards": [{}]}, {"tokenizer": {}}])
def test_another_version_and_what_is_no_index_are_refused(values, folder):
    rewrite(folder, **values)
    refused(folder, "D220")


def test_an_index_that_is_cut_is_refused(folder):
    (folder / "index.json").write_text((folder / "index.json").read_text()[:-9])
    refused(folder, "D220")


@pytest.mark.parametrize("name", ["tokens-00000.bin", "starts.bin"])
def test_a_short_file_is_named(name, folder):
    (folder / name).write_bytes(b"\0\0")
    assert name in refused(folder, "D221").message


def test_a_missing_file_is_named(folder):
    (folder / "tokens-00000.bin").unlink()
    assert "tokens-00000.bin" in refused(folder, "D221").message


class Other(ByteTokenizer):
    eos_id = 300


def test_c40_another_tokenizer_than_the_one_that_made_it_is_refused(folder):
    assert "EOS 300" in refused(folder, "D222", tokenizer=Other()).message


def test_c40_ids_beyond_the_vocabulary_are_refused(folder):
    assert "258 or more" in refused(folder, "D223", vocab_size=257).fix


def test_thousands_of_shards_take_no_descriptor_until_they_are_read(folder):
    index = json.loads((folder / "index.json").read_text())
    rewrite(folder, shards=index["shards"] * 4000)
    stream = open_prepared(folder, key=KEY)
    assert stream.tokens == 4000 * 11
    assert stream.read(11 * 3999, 11 * 4000).tolist() == stream.read(0, 11).tolist()
