from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exchanging import imported, keys, random_weights, tiny_shape, written
from parity import Layout
from resuming import train
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import TitanError
from engine.exchange.checkpoint import StoredCheckpoint
from engine.exchange.importing import opened
from engine.shapes import ModelShape, RopeScaling

PARAMS = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5, "rope_theta": 500000.0}


def llama(family: str = "llama3") -> ModelShape:
    """A shape that Meta's params.json can say: heads are as wide as dim / n_heads."""
    scaling = RopeScaling(factor=32.0 if family.endswith("tied") else 8.0)
    return replace(tiny_shape(family), dim=64, rope_scaling=scaling)


def interleaved(weights: dict[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """The same weights with rotary rows as Meta has them: r0, i0, r1, i1, ..."""
    found = dict(weights)
    for name, weight in weights.items():
        heads = {"wq": shape.n_heads, "wk": shape.n_kv_heads}.get(name.split(".")[-2])
        if heads:
            halves = weight.view(heads, 2, shape.head_dim // 2, shape.dim)
            found[name] = halves.transpose(1, 2).reshape(weight.shape)
    return found


def metas(folder: Path, pieces: list[dict[str, Tensor]]) -> Path:
    """Weights as Meta's files."""
    folder.mkdir()
    for number, piece in enumerate(pieces):
        torch.save(piece, folder / f"consolidated.{number:02d}.pth")
    (folder / "params.json").write_text(json.dumps(PARAMS | {"use_scaled_rope": True}))
    return folder


@pytest.mark.parametrize("family", ["llama3", "llama3 tied"])
def test_c34_metas_files_are_read_with_queries_and_keys_in_halves_and_values_as_they_are(
    family: str, tmp_path: Path
) -> None:
    shape = llama(family)
    weights = random_weights(shape)
    theirs = interleaved(weights, shape)
    if shape.tie_embeddings:
        theirs["output.weight"] = theirs["tok_embeddings.weight"]
    with opened(metas(tmp_path / "meta", [theirs])) as (source, found):
        assert found == shape
        for name, weight in weights.items():
            assert torch.equal(source.block(name), weight), name
            if weight.ndim == 2:
                rows, columns = slice(3, 9), slice(1, 5)
                assert torch.equal(source.block(name, rows, columns), weight[rows, columns]), name


def test_metas_files_of_two_ranks_are_put_together(tmp_path: Path) -> None:
    shape = llama()
    weights = random_weights(shape)
    pieces: list[dict[str, Tensor]] = [{}, {}]
    by_columns = ("wo.weight", "w2.weight", "tok_embeddings.weight")
    for name, weight in interleaved(weights, shape).items():
        halves = (weight, weight) if weight.ndim == 1 else weight.chunk(2, 1 if name.endswith(by_columns) else 0)
        for piece, half in zip(pieces, halves, strict=True):
            piece[name] = half.clone()
    with opened(metas(tmp_path / "meta", pieces)) as (source, found):
        assert found == shape
        assert all(torch.equal(source.block(name), weight) for name, weight in weights.items())


def test_a_file_of_metas_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    folder = metas(tmp_path / "meta", [random_weights(llama())])
    file = folder / "consolidated.00.pth"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(TitanError, match=r"D651.*consolidated.00.pth cannot be read"), opened(folder):
        pass


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_a_checkpoint_of_torchtitan_is_read_once_its_model_is_named(family: str, tmp_path: Path) -> None:
    """Its names are those here; of Qwen 3 it has the rows of queries and keys in halves, of Llama interleaved."""
    train(Layout(name="", degrees={}).arguments("AdamW") | keys(family) | {"training__steps": 1}, str(tmp_path))
    folder, shape = tmp_path / "checkpoints" / "step-1", tiny_shape(family)
    (folder / "manifest.json").unlink()
    with pytest.raises(TitanError, match=r"(?s)does not say of which model.*--model 8B"), opened(folder):
        pass
    stored = {name: StoredCheckpoint(folder).whole(name) for name in random_weights(shape)}
    with opened(folder, shape) as (source, _):
        found = {name: source.block(name) for name in stored}
    expected = stored if shape.qk_norm else interleaved_to_halves(stored, shape)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    with pytest.raises(TitanError, match=r"D652.*shape"), opened(folder, llama()):
        pass


def interleaved_to_halves(weights: dict[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Rows r0, i0, r1, i1, ... of each head as r0, r1, ..., i0, i1, ..."""
    found = dict(weights)
    for name, weight in weights.items():
        heads = {"wq": shape.n_heads, "wk": shape.n_kv_heads}.get(name.split(".")[-2])
        if heads:
            pairs = weight.view(heads, shape.head_dim // 2, 2, shape.dim)
            found[name] = pairs.transpose(1, 2).reshape(weight.shape)
    return found


def test_a_rank_reads_the_rows_and_columns_of_its_share(tmp_path: Path) -> None:
    folder = written("llama3", tmp_path / "theirs")
    whole = load_file(folder / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    with opened(folder) as (source, _):
        block = source.block("layers.1.feed_forward.w2.weight", slice(8, 16), slice(24, 48))
    assert torch.equal(block, whole[8:16, 24:48])


def test_a_folder_that_lacks_a_weight_or_has_another_is_refused(tmp_path: Path) -> None:
    folder = written("llama3", tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    for change, message in (
        ({"model.norm.weight": None}, "lacks model.norm.weight"),
        ({"extra": torch.zeros(1)}, "holds extra, which this model has not"),
        ({"model.norm.weight": torch.zeros(3)}, r"has the shape \(3,\), and this model's has \(32,\)"),
        ({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}, "is kept in I8"),
    ):
        changed = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(TitanError, match=f"D652.*{message}"):
            imported(folder, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    file = written("llama3", tmp_path / "theirs") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(TitanError, match=r"D651.*no whole safetensors file"):
        imported(tmp_path / "theirs", tmp_path / "checkpoint")
