from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Finding, TitanError
from engine.huggingface.config_file import config_json
from engine.huggingface.files import folder_of, refusals, stored_in
from engine.huggingface.names import foreign_names
from engine.shapes import FLAVORS, ModelShape, part_parameters

HERE = FLAVORS["llama3"]["debugmodel"]


def headers(folder: Path, shape: ModelShape, *, config: ModelShape | None = None) -> Path:
    """A model of which only headers are read: its weights are a hole in the file."""
    folder.mkdir()
    names, place = foreign_names(shape, "huggingface"), 0
    entries: dict[str, Any] = {}
    for here, weight in part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True).items():
        end = place + 2 * weight.numel
        entries[names[here]] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [place, end]}
        place = end
    _write(folder / "model.safetensors", entries, place)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config_json(config, seq_len=64, dtype="bfloat16")))
    return folder


def _write(file: Path, entries: dict[str, Any], size_bytes: int) -> None:
    header = json.dumps(entries).encode()
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(header)) + header)
        opened.truncate(8 + len(header) + size_bytes)


def one(folder: Path, shape: ModelShape) -> Finding:
    """The first finding."""
    return refusals(folder, shape)[0]


def test_a_folder_of_this_model_is_taken_by_its_headers_alone(tmp_path: Path) -> None:
    assert refusals(headers(tmp_path / "hf", HERE, config=HERE), HERE) == []
    assert refusals(headers(tmp_path / "bare", HERE), HERE) == []


def test_a_model_of_the_list_is_named_in_the_fix(tmp_path: Path) -> None:
    folder = headers(tmp_path / "hf", HERE, config=FLAVORS["qwen3"]["8B"])
    found = {finding.key: finding for finding in refusals(folder, HERE)}
    assert "n_layers = 36, and this run has 6" in found["model.shape.n_layers"].message
    assert 'set model.name to "qwen3" and model.flavor to "8B"' in found["model.shape.n_layers"].fix


def test_llama_3_0_is_told_how_it_can_be_trained(tmp_path: Path) -> None:
    there = replace(FLAVORS["llama3"]["8B"], rope_scaling=None)
    finding = one(headers(tmp_path / "hf", HERE, config=there), FLAVORS["llama3"]["8B"])
    assert (finding.rule, finding.key) == ("D652", "model.name")
    assert finding.fix == 'set it to "llama2", and the numbers of this model in [model.shape]'


def test_a_number_that_has_a_key_is_told_with_it(tmp_path: Path) -> None:
    finding = one(headers(tmp_path / "hf", HERE, config=replace(HERE, ffn_dim=512)), HERE)
    assert (finding.key, finding.fix) == ("model.shape.ffn_dim", "set it to 512, or name another folder")


def test_a_folder_without_config_is_judged_by_its_shapes(tmp_path: Path) -> None:
    finding = one(headers(tmp_path / "hf", HERE), replace(HERE, ffn_dim=512))
    assert finding.rule == "D652"
    assert "mlp.gate_proj.weight of" in finding.message
    assert finding.message.endswith("has the shape (768, 256), and this model's has (512, 256), and 17 more")


def test_bytes_that_are_no_tensor_of_that_shape_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "model.safetensors", {"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, 8)
    with pytest.raises(TitanError, match=r"D651.*8 bytes are no \(3,\) in F32"):
        stored_in(tmp_path)


def test_a_file_that_the_index_names_and_is_gone_is_told(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TitanError, match=r"D651.*lacks model-00001-of-00002.safetensors.*and 1 more"):
        stored_in(tmp_path)


def test_a_name_of_the_hub_is_told_how_to_download() -> None:
    with pytest.raises(TitanError, match=r"hf download meta-llama/Llama-3\.1-8B --local-dir DIR"):
        stored_in(Path("meta-llama/Llama-3.1-8B"))


def test_a_url_is_refused() -> None:
    with pytest.raises(TitanError, match=r"D651.*s3://bucket/x is a URL"):
        folder_of("s3://bucket/x")
