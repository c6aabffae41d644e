from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from exchanging import exported, imported, written
from safetensors.torch import load_file, save_file

import engine.exchange.export
import engine.huggingface.names
from engine.errors import TitanError
from engine.exchange.check import TOLERANCE, check
from engine.exchange.checkpoint import StoredCheckpoint
from engine.exchange.reference import ReferenceModel
from engine.huggingface.names import halves_from_interleaved


@pytest.mark.parametrize(
    ("one", "other"),
    [("attention_norm.weight", "ffn_norm.weight"), ("feed_forward.w1.weight", "feed_forward.w3.weight")],
)
def test_c34_two_names_swapped_in_the_map_fail_the_check(
    one: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = imported(written("llama3", tmp_path / "theirs"), tmp_path / "checkpoint")
    table = engine.huggingface.names._IN_BLOCK
    monkeypatch.setattr(engine.huggingface.names, "_IN_BLOCK", table | {one: table[other], other: table[one]})
    with pytest.raises(TitanError, match=r"D655.*logits of .* differ"):
        exported(checkpoint, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_c34_rows_of_queries_that_are_interleaved_give_other_logits(tmp_path: Path) -> None:
    export = exported(imported(written("llama3", tmp_path / "a"), tmp_path / "checkpoint"), tmp_path / "ours")
    file, name = tmp_path / "ours" / "model.safetensors", "model.layers.0.self_attn.q_proj.weight"
    tokens_BS = torch.arange(24)[None]
    before, tensors = ReferenceModel(tmp_path / "ours").logits(tokens_BS), load_file(file)
    order = halves_from_interleaved(export.shape.n_heads, export.shape.head_dim)
    save_file(tensors | {name: tensors[name][order]}, file)
    assert float((ReferenceModel(tmp_path / "ours").logits(tokens_BS) - before).abs().max()) > 100 * TOLERANCE


def test_a_byte_that_changed_on_the_disk_fails_the_check(tmp_path: Path) -> None:
    export = exported(imported(written("qwen3", tmp_path / "theirs"), tmp_path / "checkpoint"), tmp_path / "ours")
    file = tmp_path / "ours" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(TitanError, match=r"D655.*is not what the checkpoint holds"):
        check(export, tmp_path / "ours")


def test_a_weight_that_changed_in_the_checkpoint_is_not_exported(tmp_path: Path) -> None:
    checkpoint = imported(written("llama3", tmp_path / "theirs"), tmp_path / "checkpoint")
    file = checkpoint / "__0_0.distcp"
    raw = bytearray(file.read_bytes())
    raw[raw.find(StoredCheckpoint(checkpoint).whole("norm.weight").numpy().tobytes())] ^= 1
    file.write_bytes(raw)
    with pytest.raises(TitanError, match=r"D653.*norm.weight in .* is not to be used: .*CRC-32"):
        exported(checkpoint, tmp_path / "ours")


def test_a_disk_that_fills_beside_the_weights_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoint = imported(written("llama3", tmp_path / "theirs"), tmp_path / "checkpoint")
    monkeypatch.setattr(engine.exchange.export, "write_index", full)
    with pytest.raises(TitanError, match=r"D654.*cannot be written: no space left on device"):
        exported(checkpoint, tmp_path / "ours")
