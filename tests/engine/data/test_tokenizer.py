"""Each document stands between one BOS and one EOS, and its ids fit the model's table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.data.tokenizer import ByteTokenizer, FileTokenizer, tokenizer_of, vocabulary_findings
from engine.errors import TitanError
from engine.keys import with_values

ROOT = Path(__file__).parents[3]


@pytest.fixture
def words(tmp_path):
    """Writes a word-level tokenizer (`a b` -> 7, 8) with what stands beside it; gives the folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    def build(bos="<s>", eos="</s>", *, ids=None, adds=False, beside=None, name="tokenizer_config.json", special=True):
        vocab = ids or {"<unk>": 3, "<s>": 1, "</s>": 2, "a": 7, "b": 8}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if special:
            tokenizer.add_special_tokens([token for token in ("<s>", "</s>", "<both>") if token in vocab])
        if adds:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A {eos}", special_tokens=[(token, vocab[token]) for token in {bos, eos}]
            )
        tokenizer.enable_truncation(max_length=4)
        tokenizer.enable_padding(length=6)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        named = {"bos_token": bos, "eos_token": eos} if beside is None else beside
        if named != {}:
            (tmp_path / name).write_text(json.dumps(named))
        return tmp_path

    return build


def ids_of(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    return ids.tolist()


def broken(path):
    with pytest.raises(TitanError) as caught:
        FileTokenizer(path)
    (only,) = caught.value.findings
    assert (only.rule, only.key) == ("D206", "data.tokenizer")
    return only.message


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_are_their_own_ids(text):
    (ids,) = ByteTokenizer().encode([text])
    assert ids.tolist() == [256, *text.encode(), 257]
    assert ids.dtype == np.uint16


def test_the_byte_tokenizer_needs_258_rows():
    assert ByteTokenizer().vocab_used == 258
    assert vocabulary_findings(ByteTokenizer(), 258) == ()
    assert len(vocabulary_findings(ByteTokenizer(), 257)) == 1


@pytest.mark.parametrize("adds", [False, True])
def test_c40_a_document_gets_one_bos_and_one_eos_whether_the_tokenizer_adds_its_own_or_not(adds, words):
    assert ids_of(FileTokenizer(words(adds=adds)), "a b") == [1, 7, 8, 2]


@pytest.mark.parametrize("adds", [False, True])
def test_c40_one_token_can_be_both_bos_and_eos(adds, words):
    folder = words("<both>", "<both>", ids={"<both>": 0, "<unk>": 3, "a": 7, "b": 8}, adds=adds)
    assert ids_of(FileTokenizer(folder), "a b") == [0, 7, 8, 0]


def test_c40_a_text_that_begins_with_bos_still_has_one(words):
    assert ids_of(FileTokenizer(words(special=False)), "<s> a b </s>") == [1, 7, 8, 2]


@given(
    bos=st.integers(0, 3) | st.none(), eos=st.integers(0, 3) | st.none(), ids=st.lists(st.integers(4, 9), max_size=5)
)
def test_c40_framing_a_framed_document_changes_nothing(bos, eos, ids):
    tokenizer = object.__new__(FileTokenizer)
    tokenizer.bos_id, tokenizer.eos_id = bos, eos
    once = tokenizer.frame(ids)
    assert once == [token for token in [bos] if token is not None] + ids + [
        token for token in [eos] if token is not None
    ]
    assert tokenizer.frame(once) == once


def test_c40_a_tokenizer_larger_than_the_table_is_refused_with_the_number_short(words):
    tokenizer = FileTokenizer(words(ids={"<s>": 1, "</s>": 2, "<unk>": 3, "a": 128_814}))
    (only,) = vocabulary_findings(tokenizer, 102_400)
    assert (only.rule, only.severity, only.key) == ("D207", "error", "model.shape.vocab_size")
    assert "ids up to 128,814" in only.message
    assert "102,400 is 26,415 short" in only.message
    assert vocabulary_findings(tokenizer, 102_400 + 26_415) == ()
    assert len(vocabulary_findings(tokenizer, 102_400 + 26_414)) == 1


def test_c40_a_smaller_tokenizer_is_accepted(words):
    assert vocabulary_findings(FileTokenizer(words()), 1024) == ()


def test_documents_are_neither_cut_nor_padded_by_the_settings_in_the_file(words):
    assert ids_of(FileTokenizer(words()), "a b " * 50) == [1, *[7, 8] * 50, 2]
    assert ids_of(FileTokenizer(words()), "a") == [1, 7, 2]


def test_a_special_token_spelt_out_in_a_text_is_text(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: id_ for id_, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = ids_of(FileTokenizer(tmp_path), "a<|end_of_text|>b")
    assert (ids[0], ids[-1], len(ids)) == (256, 257, len("a<|end_of_text|>b") + 2)
    assert 257 not in ids[:-1]


def test_the_file_and_its_folder_name_the_same_tokenizer(words):
    folder = words()
    assert FileTokenizer(folder).name == FileTokenizer(folder / "tokenizer.json").name


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({"bos_token": None, "eos_token": "</s>"}, [7, 2]),
        ({"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}, [1, 7, 2]),
        ({"bos_token": None, "eos_token": None}, [7]),
        ({"bos_token": "</s>", "eos_token": "<s>"}, [2, 7, 1]),
        ({"eos_token": "</s>"}, [1, 7, 2]),
        ({}, [1, 7, 2]),
    ],
    ids=["no-bos", "as-table", "none", "swapped", "bos-unsaid", "nothing-said"],
)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_special_tokens_are_those_the_files_beside_name_or_else_the_usual_ones(beside, expected, name, words):
    assert ids_of(FileTokenizer(words(beside=beside, name=name)), "a") == expected


def test_a_special_token_that_the_tokenizer_lacks_is_refused(words):
    assert 'does not have the bos_token "<start>"' in broken(words(beside={"bos_token": "<start>"}))


def test_a_file_beside_that_is_no_json_is_refused(words):
    folder = words()
    (folder / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json cannot be read" in broken(folder)


def test_a_tokenizer_that_is_not_there_or_not_one_is_refused(tmp_path):
    assert "is not there" in broken(tmp_path / "gone.json")
    assert "holds no tokenizer.json" in broken(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    assert "is not a tokenizer.json" in broken(tmp_path)


def test_ids_are_kept_in_two_bytes_up_to_65536_rows(words):
    last = {"<s>": 1, "</s>": 2, "<unk>": 3}
    assert FileTokenizer(words(ids=last | {"a": 65_535})).encode(["a"])[0].dtype == np.uint16
    assert FileTokenizer(words(ids=last | {"a": 65_536})).encode(["a"])[0].tolist() == [1, 65_536, 2]


def test_data_tokenizer_goes_before_the_assets_of_the_model_and_bytes_come_last(words):
    folder = str(words())
    assert tokenizer_of(Config()).name == "bytes"
    assert tokenizer_of(with_values(Config(), {"model.hf_assets_path": folder})).name == f"{folder}/tokenizer.json"
    both = {"model.hf_assets_path": folder, "data.tokenizer": "bytes"}
    assert tokenizer_of(with_values(Config(), both)).name == "bytes"
    assert tokenizer_of(with_values(Config(), {"data.tokenizer": folder})).name == f"{folder}/tokenizer.json"


def test_neither_torch_nor_tokenizers_is_loaded_for_bytes():
    code = "import sys, engine.data.loader; print(sorted({'torch', 'tokenizers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_c40_special_tokens_stay_visible_in_decoded_text(words) -> None:
    tokenizer = FileTokenizer(words())
    assert tokenizer.decode(ids_of(tokenizer, "a b")) == "<s> a b </s>"
    assert ByteTokenizer().decode(ids_of(ByteTokenizer(), "añb")) == "<BOS>añb<EOS>"


def test_decoding_shows_ids_that_the_tokenizer_does_not_have(words) -> None:
    assert FileTokenizer(words()).decode([7, 100, 101, 8]) == "a<id 100><id 101>b"
    assert ByteTokenizer().decode([97, 258, 98]) == "a<id 258>b"


def test_decoding_half_a_character_shows_that_it_is_none() -> None:
    assert ByteTokenizer().decode("añ".encode()[:2]) == "a\N{REPLACEMENT CHARACTER}"


def test_special_tokens_are_those_of_the_file_and_those_of_the_frame(words) -> None:
    assert dict(FileTokenizer(words("a", "b")).special) == {7: "a", 8: "b", 1: "<s>", 2: "</s>"}
    assert dict(ByteTokenizer().special) == {256: "<BOS>", 257: "<EOS>"}


@given(st.text())
def test_bytes_decode_to_the_text_they_are_of(text: str) -> None:
    assert ByteTokenizer().decode(ids_of(ByteTokenizer(), text)) == f"<BOS>{text}<EOS>"
