"""The engine against a loop that uses none of it but the model: torch's own optimizer, clipping and mean loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from synthetic import Rows, tiny
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from engine.config import Config
from engine.loop import fit
from engine.lr import learning_rate
from engine.model.initial import materialise
from engine.model.llama import Decoder
from engine.planner.plan import plan

# Sums in another order; torch's own norm on the CPU is a float32 sum.
TOLERANCE = 1e-5


def plain(config: Config) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step of an ordinary single-device loop."""
    resolved = plan(config)
    layers = tuple(range(resolved.model.n_layers))
    with torch.device("meta"):
        model = Decoder(resolved.model, layers, first=True, last=True, seq_len=config.training.seq_len)
    materialise(model, config.debug.seed, torch.device("cpu"))
    o = config.optimizer
    optimizer: torch.optim.Optimizer
    if o.name == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=o.lr, weight_decay=o.weight_decay)
    else:
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps, weight_decay=o.weight_decay
        )
    source = Rows(config, resolved, data_rank=0)
    figures: list[tuple[float, float]] = []
    for step in range(1, config.training.steps + 1):
        batches = source.batches(step)
        assert batches is not None
        tokens_BS = torch.cat([torch.from_numpy(batch.tokens_BS) for batch in batches])
        labels_BS = torch.cat([torch.from_numpy(batch.labels_BS) for batch in batches])
        loss = cross_entropy(model(tokens_BS).flatten(0, 1), labels_BS.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip_grad_norm_(model.parameters(), config.training.max_norm)
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.step()
        figures.append((loss.item(), norm.item()))
    return figures


@pytest.mark.parametrize("local_batch", [8, 2])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_five_steps_are_those_of_a_plain_torch_loop(optimizer: str, local_batch: int) -> None:
    values: dict[str, Any] = {"optimizer__name": optimizer, "training__local_batch_size": local_batch}
    config = tiny(**values)
    resolved = plan(config)
    outcome = fit(config, resolved, source=Rows(config, resolved, data_rank=0))
    ours = torch.tensor([(step["loss"], step["grad_norm"]) for step in outcome.steps])
    torch.testing.assert_close(ours, torch.tensor(plain(config)), rtol=TOLERANCE, atol=0)
