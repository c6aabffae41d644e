"""The names of weights in the files of others: Hugging Face's, and Meta's own, which torchtitan has too.

Knows names and the order of rotary rows. Does not know files (files.py) nor torch.

A head's rows of wq and wk turn in pairs. Here and at Hugging Face row i turns with row i + H / 2 (halves); in Meta's
files rows 2 i and 2 i + 1 do (interleaved): r0, i0, r1, i1 of a head of four become r0, r1, i0, i1.
"""

from __future__ import annotations

from typing import Literal

from engine.shapes import ModelShape, part_parameters

Form = Literal["huggingface", "meta"]

_ENDS = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
}


def names_of(shape: ModelShape) -> tuple[str, ...]:
    """The names of all weights of a model here, in their order; tied embeddings are one."""
    return tuple(part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True))


def foreign_name(name: str, form: Form) -> str:
    """How a weight is called in the files of others."""
    if form == "meta":
        return name
    if name in _ENDS:
        return _ENDS[name]
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_IN_BLOCK[rest]}"


def foreign_names(shape: ModelShape, form: Form) -> dict[str, str]:
    """The name in the files of others of every weight, by the name here."""
    return {name: foreign_name(name, form) for name in names_of(shape)}


def rotary_heads(name: str, shape: ModelShape) -> int:
    """Heads whose rows turn in pairs in a weight: those of queries or keys; 0 in any other."""
    return {"wq": shape.n_heads, "wk": shape.n_kv_heads}.get(name.rpartition(".weight")[0].rpartition(".")[2], 0)


def halves_from_interleaved(heads: int, head_dim: int) -> list[int]:
    """Which interleaved row stands at each row of the halves: 0, 2, 1, 3 for a head of four."""
    one_head = (*range(0, head_dim, 2), *range(1, head_dim, 2))
    return [head * head_dim + row for head in range(heads) for row in one_head]
