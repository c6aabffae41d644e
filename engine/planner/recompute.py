"""What is recomputed in backward, resolved: no `auto` is left.

Knows the choices, from least to most recomputation. Does not know what they save (activations)
or how torch is told (parallel/recompute).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.config import ActivationCheckpoint

Mode: TypeAlias = Literal["none", "selective", "full", "memory_budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Which activations are computed again in backward instead of being kept.

    `every` is that of `selective`: every n-th layer (n, 2n, ... counted from 1) is recomputed in
    full, or None where each layer keeps the results of its dear operations. `budget` is the share, 0 to 1, that the
    compiler may keep under `memory_budget`; None in every other mode.
    """

    mode: Mode = "none"
    every: int | None = None
    budget: float | None = None

    def repeats(self, layer: int) -> bool:
        """Whether a layer, counted from 0 in the whole model, keeps only its input and is computed again in full."""
        return self.mode == "full" or (self.every is not None and (layer + 1) % self.every == 0)


# From least to most: each holds less than the one before it, and computes more.
CHOICES: tuple[Recompute, ...] = (Recompute(), Recompute(mode="selective"), Recompute(mode="full"))


def recompute_choices(config: ActivationCheckpoint, *, splits_backward: bool = False) -> tuple[Recompute, ...]:
    """What the config leaves to choose from, the least recomputation first; one where the mode is named.

    `splits_backward` is true for zero-bubble schedules, which would compute a block again for each of its weights.
    """
    match config.mode:
        case "auto":
            return CHOICES[:1] if splits_backward else CHOICES
        case "selective":
            option = config.selective_ac_option
            return (Recompute(mode="selective", every=None if option == "op" else option),)
        case "memory_budget":
            return (Recompute(mode="memory_budget", budget=config.memory_budget),)
        case _:
            return (Recompute(mode=config.mode),)
