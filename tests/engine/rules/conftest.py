"""The small model of the field cases, and a check of what an edit makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.config import Config
from engine.hardware import Machine
from engine.keys import with_values
from engine.rules import Report, check
from engine.sources import Loaded

BASE: dict[str, Any] = {
    "cluster.gpu": "h100-80",
    "cluster.gpus_per_node": 8,
    "model.shape.dim": 256,
    "model.shape.n_layers": 8,
    "model.shape.n_heads": 8,
    "model.shape.n_kv_heads": 4,
    "model.shape.ffn_dim": 768,
    "model.shape.vocab_size": 1024,
    "training.seq_len": 256,
    "training.local_batch_size": 2,
    "training.steps": 10,
}

Judge = Callable[..., Report]


def loaded(config: Config) -> Loaded:
    """A config that came from nowhere in particular."""
    return Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan")


@pytest.fixture
def base() -> Config:
    """8 layers, dim 256, 8 heads, 4 KV heads, on one node of 8 GPUs."""
    return with_values(Config(), BASE)


@pytest.fixture
def judge(base: Config) -> Judge:
    """Checks the base config with dotted keys replaced, on `world` GPUs of one node."""

    def judged(edits: dict[str, Any], world: int = 8) -> Report:
        return check(loaded(with_values(base, {"cluster.gpus_per_node": world} | edits)))

    return judged


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine without GPUs, whatever this one has."""
    machine = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=2, memory_bytes=8 << 30)
    monkeypatch.setattr("engine.hardware.this_machine", lambda: machine)
    return machine
