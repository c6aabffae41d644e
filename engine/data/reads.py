"""What a loader reads: the corpora of training, or those of validation.

Knows which keys of a config name them and how they are read. Does not open anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One corpus: which dataset reads it, the path, and the key that names it, for what is said about it.

    `prepared`: the folder that holds its tokens (large.py), where they are not to be made in memory.
    """

    dataset: str
    path: str | None
    key: str
    prepared: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The corpora of a loader with their weights (one, or those of a mixture), and the order of their samples.

    `shuffle_seed`: None reads each corpus as it lies. `repeat`: begin again where a corpus ends. `to_the_end`: the
    samples that make no whole global batch are read too, in one that is filled up (validation.py).
    """

    corpora: tuple[Named, ...]
    weights: tuple[float, ...]
    shuffle_seed: int | None
    repeat: bool
    to_the_end: bool = False

    @property
    def name(self) -> str:
        """For people: the dataset, and how many corpora where it is a mixture."""
        first = self.corpora[0]
        return first.dataset if len(self.corpora) == 1 else f"{first.dataset} from {len(self.corpora)} corpora"


def training_reads(config: Config) -> Reads:
    """`training.dataset` at its path, or at all paths of `data.mixture`."""
    training, data = config.training, config.data
    paths: tuple[tuple[str | None, float], ...] = tuple(data.mixture.items()) or ((training.dataset_path, 1.0),)
    key = "data.mixture" if data.mixture else "training.dataset_path"
    return Reads(
        corpora=tuple(Named(dataset=training.dataset, path=path, key=key) for path, _ in paths),
        weights=tuple(weight for _, weight in paths),
        shuffle_seed=config.debug.seed if data.shuffle else None,
        repeat=data.repeat,
    )


def validation_reads(config: Config) -> Reads:
    """`validation.dataset` once through, as it lies: every validation of a run is of the same samples."""
    validation = config.validation
    assert validation.dataset is not None, "a rule refuses validation without a dataset"
    named = Named(dataset=validation.dataset, path=validation.dataset_path, key="validation.dataset_path")
    return Reads(corpora=(named,), weights=(1.0,), shuffle_seed=None, repeat=False, to_the_end=True)


def is_streamed(config: Config) -> bool:
    """Whether the training corpus is read while it arrives, and not before."""
    return config.data.streaming and config.training.dataset == "huggingface"
