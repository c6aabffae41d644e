"""Attention of some queries to some keys, with what it takes to merge it with that to other keys.

Knows which of torch's fused kernels computes a piece forward and backward, and returns the logarithm of
the sum of exponentials, the log-sum-exp, that each query divided by. Does not know which queries see
which keys. torch's private kernels stand here, tried on 2.11 (H200) and 2.13 (CPU).
B batch, S queries, T keys, N query heads, K key/value heads, H width of a head.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

_aten = torch.ops.aten

Kernel: TypeAlias = Literal["cpu", "flash", "efficient"]

# Not minus infinity: a query that sees no key of a piece would divide by zero. Beside the keys that it does see, in
# another piece, the exponential of this is 0.
BARRED = -1e30
# What the memory-efficient kernel asks of rows of masks and of its log-sum-exp.
_BIAS_STEP, _SUM_STEP = 16, 32
# Gradients of queries, keys and values, and none of the bias.
_WITHOUT_BIAS = [True, True, True, False]


def attend(
    q_BSNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, *, barred_BST: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """What the queries find in these keys, (B, S, N, H), and the log-sum-exp of each, (B, N, S) in float32.

    `barred_BST` is true where a query must not see a key; `causal` is for as many keys as queries.
    """
    q, k, v = (heads.transpose(1, 2) for heads in (q_BSNH, k_BTKH, v_BTKH))
    kernel = kernel_for(q, masked=barred_BST is not None)
    if kernel == "flash":
        out, sums, *_ = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    else:
        k, v, bias = _for_each_head(k, q), _for_each_head(v, q), _bias(barred_BST, q)
        if kernel == "efficient":
            out, sums, *_ = _aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal)
        else:
            out, sums = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=bias)
    # The memory-efficient kernel's has more rows than there are queries.
    return out.transpose(1, 2), sums[..., : q.shape[2]]


def attend_gradients(
    gradient_BSNH: Tensor,
    q_BSNH: Tensor,
    k_BTKH: Tensor,
    v_BTKH: Tensor,
    out_BSNH: Tensor,
    sums_BNS: Tensor,
    *,
    barred_BST: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The piece's share of the gradients of queries, keys and values, shaped like them.

    `out_BSNH` and `sums_BNS` are those of all pieces together: with them the exponentials are the whole
    softmax's, and what each piece gives adds up (Ring Attention, arXiv 2310.01889, appendix).
    """
    given, q, k, v, out = (heads.transpose(1, 2) for heads in (gradient_BSNH, q_BSNH, k_BTKH, v_BTKH, out_BSNH))
    kernel = kernel_for(q, masked=barred_BST is not None)
    sums = sums_BNS.contiguous()
    # The seeds of a dropout that there is not.
    seed, lengths = torch.empty(2, dtype=torch.int64, device=q.device).unbind(), (q.shape[2], k.shape[2])
    rest: tuple[Any, ...]
    arguments: tuple[Any, ...]
    if kernel == "flash":
        rest = (None, None, *lengths, 0.0, causal, *seed)
        found = _aten._scaled_dot_product_flash_attention_backward(given, q, k, v, out, sums, *rest)
    else:
        every_k, every_v, bias = _for_each_head(k, q), _for_each_head(v, q), _bias(barred_BST, q)
        if kernel == "efficient":
            sums = pad(sums, (0, -sums.shape[-1] % _SUM_STEP), value=torch.inf)
            arguments = (given, q, every_k, every_v, bias, out, sums, *seed, 0.0, _WITHOUT_BIAS, causal)
            found = _aten._scaled_dot_product_efficient_attention_backward(*arguments)[:3]
        else:
            arguments = (given, q, every_k, every_v, out, sums, 0.0, causal)
            found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(*arguments, attn_mask=bias)
        found = (found[0], *(_sum_of_heads(gradient, k) for gradient in found[1:]))
    q_gradient, k_gradient, v_gradient = (gradient.transpose(1, 2) for gradient in found)
    return q_gradient, k_gradient, v_gradient


def kernel_for(q_BNSH: Tensor, *, masked: bool) -> Kernel:
    """On CUDA flash; with a mask or in float32 the memory-efficient one.

    cuDNN's kernel is faster on Hopper, and its backward of pieces was wrong: on an H200 with torch 2.11 all
    gradients of one of four ranks were off by their whole size, in some orders of calls and not in others.
    """
    if q_BNSH.device.type == "cpu":
        return "cpu"
    return "efficient" if masked or q_BNSH.dtype == torch.float32 or q_BNSH.shape[-1] % 8 else "flash"


def _for_each_head(heads_BKTH: Tensor, q_BNSH: Tensor) -> Tensor:
    """Keys or values once for every query head."""
    return heads_BKTH.repeat_interleave(q_BNSH.shape[1] // heads_BKTH.shape[1], 1)


def _sum_of_heads(gradient_BNTH: Tensor, heads_BKTH: Tensor) -> Tensor:
    """Sums over the query heads that used one key/value head, in float32."""
    batch, _, length, width = gradient_BNTH.shape
    groups = gradient_BNTH.reshape(batch, heads_BKTH.shape[1], -1, length, width)
    return groups.sum(2, dtype=torch.float32).to(gradient_BNTH.dtype)


def _bias(barred_BST: Tensor | None, q_BNSH: Tensor) -> Tensor | None:
    """What is added to the scores, (B, N, S, T), in the queries' dtype."""
    if barred_BST is None:
        return None
    batch, length, keys = barred_BST.shape
    padded = q_BNSH.new_zeros(batch, 1, length, keys + -keys % _BIAS_STEP)
    bias = padded[..., :keys].masked_fill_(barred_BST.unsqueeze(1), BARRED)
    return bias.expand(batch, q_BNSH.shape[1], length, keys)
