"""`titan checkpoint import` and `export`, from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.config import Model
from engine.huggingface.config_file import config_json
from engine.huggingface.names import foreign_names
from engine.shapes import part_parameters, shape_of

SIZES = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48, "vocab_size": 258}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama 3 in Hugging Face's form."""
    folder = tmp_path_factory.mktemp("theirs")
    shape = shape_of(Model.model_validate({"name": "llama3", "flavor": "8B", "shape": SIZES}))
    names = foreign_names(shape, "huggingface")
    torch.manual_seed(3)
    parameters = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
    tensors = {names[name]: torch.rand(weight.shape).bfloat16() for name, weight in parameters.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_json(shape, seq_len=64, dtype="bfloat16")))
    return folder


def test_weights_go_in_and_out_again(titan: Callable[..., Any], theirs: Path, tmp_path: Path) -> None:
    made = titan("checkpoint", "import", str(theirs), "--output", str(tmp_path / "ours"), "--json")
    assert (made.code, made.err) == (0, "")
    assert json.loads(made.out)["dtype"] == "float32"
    out = titan(
        "checkpoint", "export", str(tmp_path / "ours"), "--output", str(tmp_path / "out"), "--dtype", "bfloat16"
    )
    assert out.code == 0, out.err
    assert "all bytes are the checkpoint's" in out.out
    written, given = (folder / "model.safetensors" for folder in (tmp_path / "out", theirs))
    assert written.stat().st_size == pytest.approx(given.stat().st_size, abs=4096)
    again = titan("checkpoint", "export", str(tmp_path / "ours"), "--output", str(tmp_path / "out"))
    assert again.code == 2
    assert "D654" in again.err
    assert "is there already" in again.err
    shard = tmp_path / "ours" / "__0_0.distcp"
    shard.write_bytes(bytes(shard.stat().st_size))
    failed = titan("checkpoint", "export", str(tmp_path / "ours"), "--output", str(tmp_path / "bad"), "--json")
    assert (failed.code, failed.out) == (1, "")
    assert "error[D653]" in failed.err
    assert "Traceback" not in failed.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "out"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("import", "gone", "--output", "x"), "D650"),
        (("import", "gone"), "name it: --output DIR"),
        (("export", "gone", "--output", "x"), "U110"),
        (("import", "gone", "--output", "x", "--dtype", "int8"), "--dtype int8"),
        (("import", "gone", "--output", "s3://bucket/x"), "s3://bucket/x is a URL"),
        (("import", "s3://bucket/x", "--output", "x"), "s3://bucket/x is a URL"),
    ],
)
def test_a_wrong_line_is_exit_2_and_writes_nothing(
    words: tuple[str, ...], message: str, titan: Callable[..., Any], tmp_path: Path
) -> None:
    made = titan("checkpoint", *words, cwd=tmp_path)
    assert made.code == 2
    assert message in made.err
    assert "Traceback" not in made.err
    assert list(tmp_path.iterdir()) == []
