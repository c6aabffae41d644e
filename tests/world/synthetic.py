"""A model and data small enough for tests, with awkward sizes, the same for every layout.

Rows of tokens depend only on (step, row), and some labels do not count, so that ranks and
accumulation steps hold unequal numbers of valid tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.config import Config
from engine.data.batch import IGNORE, Batch
from engine.keys import with_values
from engine.planner.plan import Plan

SHAPE: dict[str, Any] = {
    "model.shape.dim": 32,
    "model.shape.n_layers": 2,
    "model.shape.n_heads": 4,
    "model.shape.n_kv_heads": 2,
    "model.shape.ffn_dim": 102,  # not a multiple of 4 ranks
    "model.shape.vocab_size": 259,
}


def tiny(processes: int = 1, **values: Any) -> Config:
    """A config of five float32 steps with 8 sequences of 16 tokens each; keys with `__` for the dots go over it."""
    settings: dict[str, Any] = {
        "cluster.gpu": "cpu",
        "cluster.gpus_per_node": processes,
        "training.seq_len": 16,
        "training.local_batch_size": 8 // processes,
        "training.global_batch_size": 8,
        "training.steps": 5,
        "training.mixed_precision_param": "float32",
        "optimizer.lr": 1e-2,
        "metrics.log_freq": 1,
        # A profile of a step costs more than the five steps; tests of profiles ask for them.
        "metrics.breakdown_freq": 0,
        **SHAPE,
    }
    return with_values(Config(), settings | {key.replace("__", "."): value for key, value in values.items()})


class Rows:
    """Batches of one data rank, cut from one global batch a step, in the order of rows."""

    def __init__(self, config: Config, plan: Plan, *, data_rank: int, ends_after: int | None = None) -> None:
        self._seq_len, self._vocabulary = config.training.seq_len, plan.model.vocab_size
        self._plan, self._data_rank, self._ends_after = plan, data_rank, ends_after

    def batches(self, step: int) -> list[Batch] | None:
        """As the loader's."""
        if self._ends_after is not None and step > self._ends_after:
            return None
        local, ranks = self._plan.local_batch_size, self._plan.mesh.data_ranks
        starts = [(turn * ranks + self._data_rank) * local for turn in range(self._plan.gradient_accumulation_steps)]
        return [self._batch(step, range(start, start + local)) for start in starts]

    @property
    def end_message(self) -> str:
        """As the loader's."""
        return f"the data ended after step {self._ends_after}"

    def _batch(self, step: int, rows: range) -> Batch:
        texts = [self._row(step, row) for row in rows]
        return Batch(
            tokens_BS=np.stack([tokens for tokens, _ in texts]), labels_BS=np.stack([labels for _, labels in texts])
        )

    def _row(self, step: int, row: int) -> tuple[Any, Any]:
        random = np.random.default_rng([step, row])
        tokens = random.integers(0, self._vocabulary, self._seq_len + 1, dtype=np.int64)
        labels = tokens[1:].copy()
        labels[: row * 2 % self._seq_len] = IGNORE
        return tokens[:-1].copy(), labels
