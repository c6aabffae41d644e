"""Tiny models in Hugging Face's form, and their way in and out, for tests of that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from synthetic import tiny
from torch import Tensor

from engine.checkpoint.manifest import read_manifest
from engine.exchange.check import check
from engine.exchange.export import Export, begin, model_shape, write_beside, write_part
from engine.exchange.importing import import_into, opened
from engine.exchange.whole import make_whole
from engine.huggingface.config_file import config_json
from engine.huggingface.names import foreign_names
from engine.shapes import ModelShape, part_parameters, shape_of

FAMILIES = ["llama3", "llama3 tied", "qwen3", "qwen3 tied"]


def keys(family: str) -> dict[str, Any]:
    """The model of a tiny config: heads of 16 elements, two of them for keys, rotary rows that differ."""
    name, _, tied = family.partition(" ")
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "ffn_dim": 48, "vocab_size": 258}
    shape = {f"model__shape__{key}": value for key, value in sizes.items()}
    flavor = {"llama3": "1B", "qwen3": "0.6B"}[name]
    return shape | {"model__name": name, "model__flavor": flavor, "model__shape__tie_embeddings": bool(tied)}


def tiny_shape(family: str) -> ModelShape:
    """Its numbers."""
    return shape_of(tiny(**keys(family)).model)


def random_weights(shape: ModelShape) -> dict[str, Tensor]:
    """Weights by their names here: no two are alike, and large enough that attention has something to choose from."""
    generator = torch.Generator().manual_seed(5)
    parameters = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
    return {
        name: 0.5 + torch.rand(weight.shape, generator=generator)
        if len(weight.shape) == 1
        else torch.randn(weight.shape, generator=generator) * 0.3
        for name, weight in parameters.items()
    }


def written(family: str, folder: Path) -> Path:
    """A random model of `keys` in Hugging Face's form, by titan's own table of names."""
    shape = tiny_shape(family)
    names = foreign_names(shape, "huggingface")
    folder.mkdir(parents=True)
    save_file({names[name]: weight for name, weight in random_weights(shape).items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_json(shape, seq_len=64, dtype="float32")))
    return folder


def imported(folder: Path, checkpoint: Path, dtype: str = "float32") -> Path:
    """A folder as a checkpoint."""
    with opened(folder) as (source, shape):
        import_into(checkpoint, source, shape, dtype=dtype, versions={}, written=lambda _: None)
    return checkpoint


def exported(checkpoint: Path, output: Path, dtype: str = "float32") -> Export:
    """A checkpoint as a folder, checked."""
    shape = model_shape(read_manifest(checkpoint))
    export = Export(checkpoint=checkpoint, output=output, shape=shape, dtype=dtype, seq_len=64)
    begin(export)
    write_part(export, written=lambda _: None)
    write_beside(export)
    check(export, export.partial)
    make_whole(export.output)
    return export


def tensors_in(folder: Path) -> dict[str, tuple[torch.dtype, bytes]]:
    """Precision and bytes of every tensor of a folder, by name."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                tensor = file.get_tensor(name)
                found[name] = (tensor.dtype, tensor.view(torch.uint8).numpy().tobytes())
    return found
