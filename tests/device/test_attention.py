"""Attention on a GPU: every kernel that pieces are computed with, and masks of documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import engine.model.attention_kernels
from engine.model.attention import attention_kernels, causal
from engine.model.attention_kernels import attend, attend_gradients, kernel_for
from engine.model.attention_pieces import Cut, attend_to_all
from engine.model.documents import attend_within_documents, documents_of, may_see

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    # torch's own, of all kinds and versions; what matters here is on the GPU
    pytest.mark.filterwarnings("default"),
]

LENGTH, HEADS, WIDTH = 512, (8, 2, 2), 64
KERNELS = ["flash", "efficient"]


def heads(dtype: torch.dtype, *, length: int = LENGTH) -> list[torch.Tensor]:
    """Queries, keys and values on the GPU, as products leave them."""
    random = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(2, length, n, WIDTH, generator=random, device="cuda").to(dtype) for n in HEADS]


def documents(length: int = LENGTH) -> torch.Tensor:
    """Two sequences: documents that begin anywhere, and one long one behind a short one."""
    starts_BS = torch.zeros(2, length, dtype=torch.int64, device="cuda")
    starts_BS[:, 0] = 1
    starts_BS[0, [7, length // 3, length // 3 + 1, length // 2, length - 2]] = 1
    starts_BS[1, 40] = 1
    return starts_BS.cumsum(1)


def exact(inputs: list[torch.Tensor], given: torch.Tensor, allowed_BST: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Attention by definition and its gradients, in float64."""
    q, k, v = of_all = [x.detach().double().requires_grad_() for x in inputs]
    groups = q.shape[2] // k.shape[2]
    every_k, every_v = (x.repeat_interleave(groups, 2) for x in (k, v))
    scores = torch.einsum("bsnh,btnh->bnst", q, every_k) / WIDTH**0.5
    out = torch.einsum(
        "bnst,btnh->bsnh", scores.masked_fill(~allowed_BST.unsqueeze(1), -torch.inf).softmax(-1), every_v
    )
    return out.detach(), *torch.autograd.grad(out, of_all, given.double())


def assert_near(found: Any, expected: Any, dtype: torch.dtype) -> None:
    """Relative to the largest value: eight bits of bfloat16, ten of TF32 at the least."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert float((one.double() - other).abs().max() / other.abs().max()) < (
            2e-2 if dtype == torch.bfloat16 else 2e-3
        )


@pytest.mark.parametrize(
    ("dtype", "masked", "kernel"),
    [
        (torch.bfloat16, False, "flash"),
        (torch.bfloat16, True, "efficient"),
        (torch.float32, False, "efficient"),
    ],
)
def test_the_fastest_kernel_that_is_right_is_taken(dtype: torch.dtype, masked: bool, kernel: str) -> None:
    assert kernel_for(heads(dtype)[0].transpose(1, 2), masked=masked) == kernel


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_pieces_of_every_kernel_add_up(kernel: str, is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.model.attention_kernels, "kernel_for", lambda *_, **__: kernel)
    q, k, v = heads(torch.bfloat16)
    given = torch.randn_like(q)
    allowed = torch.ones(2, LENGTH, LENGTH, dtype=torch.bool, device="cuda")
    expected = exact([q, k, v], given, allowed.tril() if is_causal else allowed)
    out, sums = attend(q, k, v, causal=is_causal)
    found = attend_gradients(given, q, k, v, out.contiguous(), sums, causal=is_causal)
    assert_near((out, *found), expected, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_masked_pieces_add_up_where_some_queries_see_nothing(dtype: torch.dtype) -> None:
    q, k, v = heads(dtype, length=300)
    given, documents_BS = torch.randn_like(q), documents(300)
    allowed_BST = may_see(documents_BS, torch.arange(300, device="cuda"))
    expected = exact([q, k, v], given, allowed_BST)
    out, sums = attend(q, k, v, barred_BST=~allowed_BST)
    found = attend_gradients(given, q, k, v, out.contiguous(), sums, barred_BST=~allowed_BST)
    assert_near((out, *found), expected, dtype)
    nothing, low = attend(q[:, 200:], k[:, :5], v[:, :5], barred_BST=~allowed_BST[:, 200:, :5])
    assert nothing.isfinite().all()
    assert (low < -1e29).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("count", [2, 4])
def test_all_ranks_together_are_causal_attention(count: int, balanced: bool, dtype: torch.dtype) -> None:
    q, k, v = heads(dtype)
    given = torch.randn_like(q)
    causally = torch.ones(2, LENGTH, LENGTH, dtype=torch.bool, device="cuda").tril()
    expected = exact([q, k, v], given, causally)
    k_gradient, v_gradient = torch.zeros_like(k, dtype=torch.float32), torch.zeros_like(v, dtype=torch.float32)
    for place in range(count):
        cut = Cut(place, count, balanced)
        own = [cut.take(q, place).clone(), k.clone(), v.clone()]
        out = attend_to_all(*[x.requires_grad_() for x in own], cut)
        gradients = torch.autograd.grad(out, own, cut.take(given, place))
        mine = [cut.take(x, place) for x in expected[:2]]
        assert_near((out.detach(), gradients[0]), mine, dtype)
        k_gradient += gradients[1]
        v_gradient += gradients[2]
    assert_near((k_gradient, v_gradient), expected[2:], dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("compiled", [False, True])
def test_attention_inside_documents_is_as_defined_and_waits_for_nothing(compiled: bool, dtype: torch.dtype) -> None:
    inputs = [x.requires_grad_() for x in heads(dtype)]
    given, documents_BS = torch.randn_like(inputs[0]), documents()
    places_S = torch.arange(LENGTH, device="cuda")
    expected = exact(inputs, given, may_see(documents_BS, places_S))
    core = torch.compile(causal, fullgraph=True) if compiled else causal
    with attention_kernels("cuda"):
        # Another batch before it, whose mask must not be compiled into this one's.
        torch.autograd.grad(core(*inputs, documents_of(torch.ones_like(documents_BS), places_S)), inputs, given)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            out = core(*inputs, documents_of(documents_BS, places_S))
            found = torch.autograd.grad(out, inputs, given)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert_near((out.detach(), *found), expected, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_rank_with_an_early_and_a_late_chunk_stays_inside_documents(dtype: torch.dtype) -> None:
    q, k, v = heads(dtype, length=600)
    documents_BS, places_S = documents(600), torch.cat((torch.arange(50, 150), torch.arange(450, 550))).cuda()
    inputs = [x.clone().requires_grad_() for x in (q[:, places_S], k, v)]
    given = torch.randn_like(inputs[0])
    out = attend_within_documents(*inputs, documents_of(documents_BS, places_S))
    found = torch.autograd.grad(out, inputs, given)
    assert_near((out.detach(), *found), exact(inputs, given, may_see(documents_BS, places_S)), dtype)
