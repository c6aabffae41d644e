"""Model families and sizes as numbers: shapes, parameter counts and FLOPs, without torch.

Knows Llama 3 (3.1 and 3.2), Llama 2 and Qwen 3 as their authors published them. Does not know
how a model is split over ranks (planner) or computed (model/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, Literal

from engine.config import Model

Split = Literal["rows", "columns", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's stretching of rotary frequencies (arXiv 2407.21783; values from Meta's `params.json`)."""

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_seq_len: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """All numbers of one decoder-only transformer; widths in elements."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    rope_theta: float = 500_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    qk_norm: bool = False
    tie_embeddings: bool = False

    def __hash__(self) -> int:
        """Of what models differ in: shapes are looked up thousands of times."""
        return hash((self.dim, self.n_layers, self.ffn_dim, self.vocab_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One weight: its (rows, columns) or (elements,), and how tensor parallel splits it."""

    shape: tuple[int, ...]
    split: Split

    @property
    def numel(self) -> int:
        """Elements of the whole weight."""
        return prod(self.shape)


def _llama3(dim: int, n_layers: int, n_heads: int, ffn_dim: int, **more: Any) -> ModelShape:
    values: dict[str, Any] = {
        "n_kv_heads": 8,
        "head_dim": dim // n_heads,
        "vocab_size": 128_256,
        "rope_scaling": RopeScaling(factor=8.0),
    }
    return ModelShape(dim=dim, n_layers=n_layers, n_heads=n_heads, ffn_dim=ffn_dim, **(values | more))


def _llama2(dim: int, n_layers: int, n_heads: int, n_kv_heads: int, ffn_dim: int) -> ModelShape:
    return ModelShape(
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=dim // n_heads,
        ffn_dim=ffn_dim,
        vocab_size=32_000,
        rope_theta=10_000.0,
    )


def _qwen3(dim: int, n_layers: int, n_heads: int, ffn_dim: int, *, tied: bool = False) -> ModelShape:
    return ModelShape(
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=8,
        head_dim=128,
        ffn_dim=ffn_dim,
        vocab_size=151_936,
        rope_theta=1_000_000.0,
        norm_eps=1e-6,
        qk_norm=True,
        tie_embeddings=tied,
    )


_DEBUG = ModelShape(dim=256, n_layers=6, n_heads=16, n_kv_heads=8, head_dim=16, ffn_dim=768, vocab_size=2048)
_SMALL_LLAMA3 = {"rope_scaling": RopeScaling(factor=32.0), "tie_embeddings": True}

FLAVORS: dict[str, dict[str, ModelShape]] = {
    "llama3": {
        "debugmodel": _DEBUG,
        "1B": _llama3(2048, 16, 32, 8192, **_SMALL_LLAMA3),
        "3B": _llama3(3072, 28, 24, 8192, **_SMALL_LLAMA3),
        "8B": _llama3(4096, 32, 32, 14_336),
        "70B": _llama3(8192, 80, 64, 28_672),
        "405B": _llama3(16_384, 126, 128, 53_248),
    },
    "llama2": {
        "debugmodel": replace(_DEBUG, rope_theta=10_000.0),
        "7B": _llama2(4096, 32, 32, 32, 11_008),
        "13B": _llama2(5120, 40, 40, 40, 13_824),
        "70B": _llama2(8192, 80, 64, 8, 28_672),
    },
    "qwen3": {
        "debugmodel": replace(_DEBUG, rope_theta=1_000_000.0, norm_eps=1e-6, qk_norm=True),
        "0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
        "1.7B": _qwen3(2048, 28, 16, 6144, tied=True),
        "4B": _qwen3(2560, 36, 32, 9728, tied=True),
        "8B": _qwen3(4096, 36, 32, 12_288),
        "14B": _qwen3(5120, 40, 40, 17_408),
        "32B": _qwen3(5120, 64, 64, 25_600),
    },
}


def shape_of(model: Model) -> ModelShape:
    """The flavor's numbers with `[model.shape]` over them; KeyError for an unknown flavor.

    Without an overridden head_dim, overriding dim or n_heads makes it dim / n_heads (0 where
    that does not divide: rule P107 refuses it).
    """
    base = FLAVORS[model.name][model.flavor]
    overrides = {key: value for key, value in model.shape.model_dump().items() if value is not None}
    shape = replace(base, **overrides)
    if "head_dim" not in overrides and {"dim", "n_heads"} & overrides.keys():
        whole = shape.dim % shape.n_heads == 0
        shape = replace(shape, head_dim=shape.dim // shape.n_heads if whole else 0)
    return shape


@cache
def block_parameters(shape: ModelShape) -> dict[str, Parameter]:
    """The weights of one transformer block, by name below `layers.N.`, in the order of use."""
    q_width, kv_width = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    names: dict[str, tuple[tuple[int, ...], Split]] = {
        "attention_norm.weight": ((shape.dim,), "whole"),
        "attention.wq.weight": ((q_width, shape.dim), "rows"),
        "attention.wk.weight": ((kv_width, shape.dim), "rows"),
        "attention.wv.weight": ((kv_width, shape.dim), "rows"),
    }
    if shape.qk_norm:
        names["attention.q_norm.weight"] = ((shape.head_dim,), "whole")
        names["attention.k_norm.weight"] = ((shape.head_dim,), "whole")
    names |= {
        "attention.wo.weight": ((shape.dim, q_width), "columns"),
        "ffn_norm.weight": ((shape.dim,), "whole"),
        "feed_forward.w1.weight": ((shape.ffn_dim, shape.dim), "rows"),
        "feed_forward.w2.weight": ((shape.dim, shape.ffn_dim), "columns"),
        "feed_forward.w3.weight": ((shape.ffn_dim, shape.dim), "rows"),
    }
    return {name: Parameter(shape=size, split=split) for name, (size, split) in names.items()}


@cache
def part_parameters(shape: ModelShape, layers: tuple[int, ...], *, first: bool, last: bool) -> dict[str, Parameter]:
    """The weights of a part of the model, by full name.

    `layers` are the indices of its blocks; `first` holds the embedding, `last` the final norm
    and the output head. Tied embeddings are counted once, under the embedding's name, where
    first and last are one part.
    """
    names: dict[str, Parameter] = {}
    if first:
        names["tok_embeddings.weight"] = Parameter(shape=(shape.vocab_size, shape.dim), split="rows")
    for layer in layers:
        names |= {f"layers.{layer}.{name}": weight for name, weight in block_parameters(shape).items()}
    if last:
        names["norm.weight"] = Parameter(shape=(shape.dim,), split="whole")
        if not (shape.tie_embeddings and first):
            names["output.weight"] = Parameter(shape=(shape.vocab_size, shape.dim), split="rows")
    return names


def parameter_count(shape: ModelShape) -> int:
    """All trainable parameters of the model; tied embeddings count once."""
    block = sum(weight.numel for weight in block_parameters(shape).values())
    ends = part_parameters(shape, (), first=True, last=True)
    return shape.n_layers * block + sum(weight.numel for weight in ends.values())


def linear_parameter_count(shape: ModelShape) -> int:
    """Weights that multiply every token: all matrices of the blocks and the output head, not the embedding table."""
    block = sum(weight.numel for weight in block_parameters(shape).values() if len(weight.shape) == 2)
    return shape.n_layers * block + shape.vocab_size * shape.dim


def flops_per_token(shape: ModelShape, seq_len: int) -> int:
    """FLOPs of forward and backward for one token, in the convention MFU is stated in.

    6 a linear weight, plus 12 x layers x query width x seq_len for attention: the full square,
    as PaLM (arXiv 2204.02311, appendix B) counts it, although a causal mask needs half.
    Recomputation is not counted.
    """
    attention = 12 * shape.n_layers * shape.n_heads * shape.head_dim * seq_len
    return 6 * linear_parameter_count(shape) + attention
