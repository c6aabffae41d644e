"""What Hugging Face's Llama and Qwen 3 compute, read by their names from their files, a layer at a time.

Knows transformers' modeling_llama and modeling_qwen3, and shares nothing with titan's model or its table of names: it
is there to disagree with them. Never more than one layer is in memory. Products are in float32 on the CPU.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

_PIECE_ROWS = 8192


class ReferenceModel:
    """A folder's model; weights are read with safetensors alone."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        index = folder / "model.safetensors.index.json"
        if index.exists():
            places = json.loads(index.read_bytes())["weight_map"]
            self._files = {name: folder / file for name, file in places.items()}
        else:
            self._files = {}
        self._single = folder / "model.safetensors"

    def weight(self, name: str) -> Tensor:
        """A weight in float32."""
        from safetensors import safe_open

        with safe_open(self._files.get(name, self._single), framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor.float()

    def logits(self, tokens_BS: Tensor) -> Tensor:
        """(B, S) ids to (B, S, V) logits."""
        config = self.config
        h_BSD = self._embedded(tokens_BS)
        cos, sin = _rotary(config, tokens_BS.shape[1])
        for layer in range(config["num_hidden_layers"]):
            h_BSD = self._layer(f"model.layers.{layer}", h_BSD, cos, sin)
        h_BSD = _norm(h_BSD, self.weight("model.norm.weight"), config["rms_norm_eps"])
        head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
        return torch.cat([linear(h_BSD, rows) for rows in self._pieces(head)], dim=-1)

    def _embedded(self, tokens_BS: Tensor) -> Tensor:
        """A table may be the largest of all weights: only the rows that are asked for are read."""
        from safetensors import safe_open

        name = "model.embed_tokens.weight"
        with safe_open(self._files.get(name, self._single), framework="pt") as file:
            table = file.get_slice(name)
            rows = [table[int(token) : int(token) + 1] for token in tokens_BS.flatten()]
        return torch.cat(rows).float().view(*tokens_BS.shape, -1)

    def _pieces(self, name: str) -> Iterator[Tensor]:
        from safetensors import safe_open

        with safe_open(self._files.get(name, self._single), framework="pt") as file:
            table = file.get_slice(name)
            for first in range(0, table.get_shape()[0], _PIECE_ROWS):
                yield table[first : first + _PIECE_ROWS].float()

    def _layer(self, at: str, h_BSD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        eps = self.config["rms_norm_eps"]
        x_BSD = _norm(h_BSD, self.weight(f"{at}.input_layernorm.weight"), eps)
        h_BSD = h_BSD + self._attention(f"{at}.self_attn", x_BSD, cos, sin)
        x_BSD = _norm(h_BSD, self.weight(f"{at}.post_attention_layernorm.weight"), eps)
        gate = silu(linear(x_BSD, self.weight(f"{at}.mlp.gate_proj.weight")))
        up = linear(x_BSD, self.weight(f"{at}.mlp.up_proj.weight"))
        return h_BSD + linear(gate * up, self.weight(f"{at}.mlp.down_proj.weight"))

    def _attention(self, at: str, x_BSD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        config = self.config
        batch, length, _ = x_BSD.shape
        width = config["head_dim"]

        def heads(name: str, count: int, norm: str | None) -> Tensor:
            x = linear(x_BSD, self.weight(f"{at}.{name}.weight")).view(batch, length, count, width)
            if norm is not None and config["model_type"] == "qwen3":
                x = _norm(x, self.weight(f"{at}.{norm}.weight"), config["rms_norm_eps"])
            return x.transpose(1, 2)

        q = _rotated(heads("q_proj", config["num_attention_heads"], "q_norm"), cos, sin)
        k = _rotated(heads("k_proj", config["num_key_value_heads"], "k_norm"), cos, sin)
        v = heads("v_proj", config["num_key_value_heads"], None)
        groups = config["num_attention_heads"] // config["num_key_value_heads"]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).reshape(batch, length, -1)
        return linear(out, self.weight(f"{at}.o_proj.weight"))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotate_half` of transformers: the second half, negated, before the first."""
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _rotary(config: dict[str, Any], length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, (S, head_dim), with `_compute_llama3_parameters` where the config stretches."""
    rope, width = config["rope_parameters"], config["head_dim"]
    frequencies = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    if rope["rope_type"] == "llama3":
        old, factor = rope["original_max_position_embeddings"], rope["factor"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        waves = 2 * math.pi / frequencies
        blend = (old / waves - low) / (high - low)
        between = (1 - blend) * frequencies / factor + blend * frequencies
        frequencies = torch.where(
            waves > old / low, frequencies / factor, torch.where(waves < old / high, frequencies, between)
        )
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().float(), both.sin().float()
