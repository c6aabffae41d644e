"""The `config.json` beside a model's weights: written so that transformers loads them, read as a model's numbers.

Knows the fields of LlamaConfig and Qwen3Config of transformers 4.51 to 5. Does not know weights (files.py), nor torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import Finding, TitanError
from engine.shapes import ModelShape, RopeScaling

FILE = "config.json"

_NUMBERS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
}
_DEFAULTS = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6}


def config_json(
    shape: ModelShape, *, seq_len: int, dtype: str, bos_id: int | None = None, eos_id: int | None = None
) -> dict[str, Any]:
    """The object of `config.json`; `seq_len` is the longest sequence that the model was trained for."""
    family = "Qwen3" if shape.qk_norm else "Llama"
    rope: dict[str, Any] = {"rope_type": "default"}
    if shape.rope_scaling is not None:
        scaling = shape.rope_scaling
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_seq_len,
        }
    longest = seq_len
    if shape.rope_scaling is not None:
        longest = max(seq_len, int(shape.rope_scaling.original_seq_len * shape.rope_scaling.factor))
    values = {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        **{there: getattr(shape, here) for here, there in _NUMBERS.items()},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": longest,
        # transformers 5 reads the first, 4 the two after it.
        "rope_parameters": rope | {"rope_theta": shape.rope_theta},
        "rope_theta": shape.rope_theta,
        "rope_scaling": rope if shape.rope_scaling is not None else None,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if family == "Llama":
        values |= {"mlp_bias": False, "pretraining_tp": 1}
    return values


def read_shape(folder: Path) -> ModelShape:
    """The numbers of the model in a folder; TitanError D650 where it is none that can be computed here."""
    file = folder / FILE
    try:
        written = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        raise _wrong(f"{file} cannot be read: {reason}") from error
    if not isinstance(written, dict):
        raise _wrong(f"{file} is not a JSON object")
    return shape_of_json(written, str(file))


def shape_of_json(written: Mapping[str, Any], file: str) -> ModelShape:
    """The numbers that a `config.json` names."""
    family = written.get("model_type")
    if family not in ("llama", "qwen3"):
        raise _wrong(f'{file} is of a model_type "{family}", and titan computes llama and qwen3')
    for name, usual in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if written.get(name, usual) != usual:
            raise _wrong(f"{file} has {name} = {written[name]}, and titan computes {usual}")
    if written.get("use_sliding_window"):
        raise _wrong(f"{file} has use_sliding_window = true, and titan attends to the whole sequence")
    values = {}
    for here, there in _NUMBERS.items():
        value = written.get(there, _DEFAULTS.get(there))
        if value is None and there == "num_key_value_heads":
            value = written.get("num_attention_heads")
        if value is None and there == "head_dim":
            heads = written.get("num_attention_heads") or 1
            value = 128 if family == "qwen3" else written.get("hidden_size", 0) // heads
        if value is None:
            raise _wrong(f"{file} has no {there}")
        values[here] = value
    rope = written.get("rope_parameters") or written.get("rope_scaling") or {}
    theta = rope.get("rope_theta", written.get("rope_theta", 10_000.0))
    return ModelShape(**values, qk_norm=family == "qwen3", rope_theta=float(theta), rope_scaling=_scaling(rope, file))


def _scaling(rope: Mapping[str, Any], file: str) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise _wrong(f'{file} stretches rotary frequencies by "{kind}", and titan by llama3')
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_seq_len=int(rope["original_max_position_embeddings"]),
    )


def differences(there: ModelShape, here: ModelShape) -> list[tuple[str, Any, Any]]:
    """Numbers in which two models differ, by name: theirs, ours."""
    names = (name for name in ModelShape.__slots__ if getattr(there, name) != getattr(here, name))
    return [(name, getattr(there, name), getattr(here, name)) for name in names]


def _wrong(message: str) -> TitanError:
    fix = "name a folder with a Llama 2, Llama 3 or Qwen 3 model in Hugging Face's form"
    return TitanError(
        Finding(rule="D650", severity="error", key="checkpoint.initial_load_path", message=message, fix=fix)
    )
