"""What a rank holds of a run's state, as a flat table of names to tensors: what a checkpoint is made of.

Knows weights by their full name, the optimizer's states by the weight that they belong to, and random states by rank.
Does not know files (checkpoint/), nor when anything is saved or loaded (saving.py, starting.py).

The number of updates is no tensor of a table: every weight has had the same, and a rank that holds no element of a
weight has not counted its updates.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from engine.build import Built
from engine.optim import allocate
from engine.parallel.quantize import plain

_UPDATES = "step"


def weights_of(built: Built) -> dict[str, Tensor]:
    """Every weight that this rank holds a share of, by its full name; the memory is that of the model."""
    return {name: plain(weight) for name, weight in built.weights.items()}


def state_of(built: Built) -> dict[str, Tensor]:
    """Weights, the optimizer's states, which are made where there are none yet, and random states."""
    return weights_of(built) | _optimizer_states(built) | random_states(built.device)


def updates_of(built: Built) -> int:
    """Updates that the weights of this rank have had; 0 where it holds none, or the optimizer does not count."""
    counts = [state[_UPDATES] for state in built.optimizer.state.values() if _UPDATES in state]
    return int(torch.stack([count.float() for count in counts]).max()) if counts else 0


def set_updates(built: Built, updates: int) -> None:
    """Sets the number of updates that every weight has had."""
    for state in built.optimizer.state.values():
        if _UPDATES in state:
            state[_UPDATES].fill_(updates)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of this rank's generators, copies, by names of the rank's own."""
    rank = dist.get_rank()
    states = {f"random.cpu.{rank:05d}": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"random.cuda.{rank:05d}"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Puts the generators of this rank where `random_states` found them."""
    rank = dist.get_rank()
    torch.set_rng_state(states[f"random.cpu.{rank:05d}"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[f"random.cuda.{rank:05d}"], device)


def _optimizer_states(built: Built) -> dict[str, Tensor]:
    return dict(_named_states(built))


def _named_states(built: Built) -> Iterator[tuple[str, Tensor]]:
    allocate(built.optimizer)
    for name, weight in built.weights.items():
        for state, value in built.optimizer.state[weight].items():
            if state != _UPDATES:
                yield f"optimizer.{state}.{name}", plain(value)
