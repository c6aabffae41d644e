"""The loss is a float32 sum over labels that count."""

from __future__ import annotations

from math import log

import pytest
import torch

from engine.data.loader import IGNORE as DATA_IGNORE
from engine.model.loss import IGNORE, cross_entropy_sum


def test_the_loss_is_a_sum_over_valid_labels() -> None:
    logits_BSV = torch.randn(2, 3, 7, dtype=torch.float64)
    labels_BS = torch.tensor([[1, IGNORE, 3], [IGNORE, IGNORE, 0]])
    chances = logits_BSV.log_softmax(-1)
    expected = -(chances[0, 0, 1] + chances[0, 2, 3] + chances[1, 2, 0])
    assert cross_entropy_sum(logits_BSV, labels_BS).item() == pytest.approx(expected.item(), rel=1e-6)


def test_without_valid_labels_the_loss_is_zero_and_so_are_gradients() -> None:
    logits_BSV = torch.randn(1, 2, 5, requires_grad=True)
    loss = cross_entropy_sum(logits_BSV, torch.full((1, 2), IGNORE))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0
    assert torch.equal(logits_BSV.grad, torch.zeros(1, 2, 5))


def test_bf16_logits_give_a_float32_loss() -> None:
    logits_BSV = torch.randn(1, 4, 9).bfloat16()
    labels_BS = torch.tensor([[0, 1, 2, 3]])
    loss = cross_entropy_sum(logits_BSV, labels_BS)
    assert loss.dtype == torch.float32
    assert loss == cross_entropy_sum(logits_BSV.float(), labels_BS)


def test_c10_even_logits_cost_the_logarithm_of_the_vocabulary() -> None:
    labels_BS = torch.tensor([[0, 50_256]])
    assert cross_entropy_sum(torch.zeros(1, 2, 50_257), labels_BS).item() / 2 == pytest.approx(10.824905, abs=1e-5)
    assert pytest.approx(10.824905, abs=1e-6) == log(50_257)


def test_data_and_loss_agree_on_labels_that_do_not_count() -> None:
    assert IGNORE == DATA_IGNORE
