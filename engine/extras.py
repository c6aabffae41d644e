"""Packages that titan uses only where a config asks for what they do.

Knows which key needs which package, and how it is had. Imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from engine.config import Config
from engine.keys import value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A package beside the key that asks for it; `name` is what people call it."""

    key: str
    package: str
    name: str

    @property
    def pip(self) -> str:
        """The line that installs it: an extra of titan's own, which has the versions that were tried."""
        return f"python -m pip install 'titan-train[{self.package}]'"


TENSORBOARD = Extra(key="metrics.enable_tensorboard", package="tensorboard", name="TensorBoard")
WANDB = Extra(key="metrics.enable_wandb", package="wandb", name="Weights & Biases")
EXTRAS = (TENSORBOARD, WANDB)


def is_here(package: str) -> bool:
    """Whether a package can be imported here; a mere folder of its name, as `wandb` leaves one, is none."""
    found = find_spec(package)
    return found is not None and found.origin is not None


def missing(config: Config, *, is_here: Callable[[str], bool] = is_here) -> tuple[Extra, ...]:
    """What a config asks for and this Python has not."""
    return tuple(extra for extra in EXTRAS if value_of(config, extra.key) and not is_here(extra.package))
