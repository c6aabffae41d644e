"""Beside transformers: names, precision and bytes equal on the way there and back, and the same logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from exchanging import FAMILIES, exported, imported, keys, tensors_in, tiny_shape
from gloo_pool import GlooPool
from parity import Layout
from resuming import train

from engine.checkpoint.manifest import read_manifest
from engine.exchange.check import logits_of
from engine.exchange.checkpoint import StoredCheckpoint
from engine.exchange.export import model_shape
from engine.exchange.writing import shared_out

TOKENS_BS = torch.arange(40)[None] * 5 % 258
Theirs: TypeAlias = Callable[[str, torch.dtype], tuple[Any, Path]]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    """A random model of transformers with the numbers of `keys`, and the folder that it is saved in."""
    made: dict[tuple[str, torch.dtype], tuple[Any, Path]] = {}

    def model(family: str, dtype: torch.dtype) -> tuple[Any, Path]:
        if (family, dtype) not in made:
            folder = tmp_path_factory.mktemp("theirs")
            made[family, dtype] = _saved(family, folder, dtype), folder
        return made[family, dtype]

    return model


def _saved(family: str, folder: Path, dtype: torch.dtype) -> Any:
    import transformers

    shape = tiny_shape(family)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if (scaling := shape.rope_scaling) is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_seq_len,
        }
    kind = "Qwen3" if shape.qk_norm else "Llama"
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=shape.dim,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ffn_dim,
        vocab_size=shape.vocab_size,
        rms_norm_eps=shape.norm_eps,
        tie_word_embeddings=shape.tie_embeddings,
        rope_parameters=rope,
    )
    torch.manual_seed(7)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Norms begin as ones, and a swap of two would not be seen.
            weight.copy_(weight + torch.rand_like(weight) * (0.5 if "norm" in name else 0.02))
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(TOKENS_BS).logits
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_there_and_back_again_changes_no_byte(family: str, dtype: torch.dtype, theirs: Theirs, tmp_path: Path) -> None:
    _, folder = theirs(family, dtype)
    exported(imported(folder, tmp_path / "checkpoint"), tmp_path / "ours", str(dtype).removeprefix("torch."))
    assert tensors_in(tmp_path / "ours") == tensors_in(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_logits_of_what_it_was_imported_from(
    family: str, theirs: Theirs, tmp_path: Path
) -> None:
    model, folder = theirs(family, torch.float32)
    checkpoint = imported(folder, tmp_path / "checkpoint")
    shape = model_shape(read_manifest(checkpoint))
    assert shape == tiny_shape(family)
    ours = logits_of(shape, StoredCheckpoint(checkpoint).whole, TOKENS_BS)
    torch.testing.assert_close(_logits(model), ours, rtol=0, atol=1e-5)


# Tied embeddings stay on one pipeline stage: those models are cut by rows instead.
SPLIT = {"llama3": {"tp": 2, "pp": 2}, "llama3 tied": {"tp": 2, "dp": 2}}
SPLIT |= {"qwen3": {"tp": 2, "pp": 2}, "qwen3 tied": {"dp": 2, "cp": 2}}


@pytest.mark.world
@pytest.mark.parametrize("way", ["one process", "four ranks"])
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_logits_of_an_export_from_any_layout(
    family: str, way: str, gloo: GlooPool, tmp_path: Path
) -> None:
    import transformers

    degrees = SPLIT[family] if way == "four ranks" else {}
    values = Layout(name="", degrees=degrees).arguments("AdamW") | keys(family) | {"training__steps": 1}
    if degrees:
        gloo.run(values["processes"], train, arguments=values, folder=str(tmp_path))
    else:
        train(values, str(tmp_path))
    checkpoint = tmp_path / "checkpoints" / "step-1"
    export = exported(checkpoint, tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ours = logits_of(export.shape, StoredCheckpoint(checkpoint).whole, TOKENS_BS)
    # Sums in another order, in float32: see check.TOLERANCE.
    torch.testing.assert_close(_logits(model), ours, rtol=0, atol=1e-5)


def test_an_export_over_several_files_is_the_same_model(
    theirs: Theirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    model, folder = theirs("llama3", torch.float32)
    monkeypatch.setattr("engine.exchange.export.shared_out", lambda sizes: shared_out(sizes, 20_000))
    exported(imported(folder, tmp_path / "checkpoint"), tmp_path / "ours")
    assert len(list((tmp_path / "ours").glob("model-*-of-*.safetensors"))) > 3
    assert tensors_in(tmp_path / "ours") == tensors_in(folder)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    assert torch.equal(_logits(again), _logits(model))
