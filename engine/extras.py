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
    """A package beside the key that asks for it, by being true or by a value; `name` is what people call it.

    `extra` is that of titan's own, where it is not called as the package.
    """

    key: str
    package: str
    name: str
    value: str | None = None
    extra: str | None = None

    @property
    def pip(self) -> str:
        """The line that installs it: an extra of titan's own, which has the versions that were tried."""
        return f"python -m pip install 'titan-train[{self.extra or self.package}]'"

    def is_asked(self, config: Config) -> bool:
        """Whether a config needs it."""
        found = value_of(config, self.key)
        return bool(found) if self.value is None else found == self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The packages that reach the URLs of one scheme: universal-pathlib, and the store's own, if it has any."""

    modules: tuple[str, ...]

    @property
    def lacks(self) -> tuple[str, ...]:
        """Those that are not here, as pip calls them."""
        return tuple(_PIP.get(module, module) for module in self.modules if not is_here(module))

    @property
    def pip(self) -> str:
        """The line that installs them all: titan's extra `remote`, which has the versions that were tried, and one."""
        own = " ".join(_PIP.get(module, module) for module in self.modules if module not in ("upath", "fsspec"))
        return f"python -m pip install 'titan-train[remote]' {own}".rstrip()


_PIP = {"upath": "universal-pathlib"}
"""What pip calls a module of another name."""


def client_of(scheme: str) -> Client | None:
    """What reaches `scheme://`, by fsspec's own table (fsspec comes with torch); None where that knows no such."""
    from fsspec.registry import known_implementations

    row = known_implementations.get(scheme)
    return None if row is None else Client(modules=("upath", row["class"].partition(".")[0]))


TENSORBOARD = Extra(key="metrics.enable_tensorboard", package="tensorboard", name="TensorBoard")
WANDB = Extra(key="metrics.enable_wandb", package="wandb", name="Weights & Biases")
PARQUET = Extra(key="training.dataset", package="pyarrow", name="pyarrow", value="parquet", extra="parquet")
HUGGINGFACE = Extra(
    key="training.dataset", package="datasets", name="datasets", value="huggingface", extra="huggingface"
)
EXTRAS = (TENSORBOARD, WANDB, PARQUET, HUGGINGFACE)


def is_here(package: str) -> bool:
    """Whether a package can be imported here; a mere folder of its name, as `wandb` leaves one, is none."""
    found = find_spec(package)
    return found is not None and found.origin is not None


def missing(config: Config, *, is_here: Callable[[str], bool] = is_here) -> tuple[Extra, ...]:
    """What a config asks for and this Python has not."""
    return tuple(extra for extra in EXTRAS if extra.is_asked(config) and not is_here(extra.package))
