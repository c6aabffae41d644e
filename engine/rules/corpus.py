"""Rules D601 to D609: what the config alone tells about the data. Files are looked at by engine/data."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from engine.config import DATASETS
from engine.facts import Facts
from engine.keys import tokenizer_name
from engine.rules.row import Rule

BYTE_IDS = 258
"""256 bytes, and the beginning and end of a document."""


def _close(name: str) -> str:
    return get_close_matches(name.lower(), DATASETS, n=1, cutoff=0.0)[0]


def _training_close(f: Facts) -> str:
    return _close(f.config.training.dataset)


def _validation_close(f: Facts) -> str:
    return _close(f.config.validation.dataset or "")


def _is_mixture(f: Facts) -> bool:
    return bool(f.config.data.mixture)


def _reads_bytes(f: Facts) -> bool:
    return tokenizer_name(f.config) == "bytes"


def _by_path(*before: str) -> str:
    """The datasets that are named by a path, and others before them, in words."""
    *first, last = (*before, *DATASETS[1:])
    return f"{', '.join(first)} or {last}"


def _place(dataset: str | None) -> str:
    """What the path of a dataset may be, in words."""
    return "a folder or a dataset of the hub" if dataset == "huggingface" else "a file or a folder"


def _stdlib(key: str) -> dict[str, Any]:
    return {key: "stdlib"}


CORPUS_RULES: tuple[Rule, ...] = (
    Rule(
        id="D601",
        key="training.dataset",
        broken=lambda f: f.config.training.dataset not in DATASETS,
        message="there is no dataset {training.dataset}",
        fix="set it to {close}; known are {known}",
        words=lambda f: {"close": _training_close(f), "known": ", ".join(DATASETS)},
        edit=lambda f: {"training.dataset": _training_close(f)},
        why="a dataset is the standard library's source, files of text, lines, tables or token ids, or one of the hub",
    ),
    Rule(
        id="D602",
        key="training.dataset_path",
        also=("training.dataset",),
        broken=lambda f: (
            f.config.training.dataset in DATASETS[1:] and f.config.training.dataset_path is None and not _is_mixture(f)
        ),
        message="dataset = {training.dataset} needs dataset_path",
        fix="set dataset_path to {place}, or dataset to stdlib",
        words=lambda f: {"place": _place(f.config.training.dataset)},
        edit=lambda _: _stdlib("training.dataset"),
        why="only stdlib brings its own text",
    ),
    Rule(
        id="D603",
        key="data.mixture",
        broken=lambda f: _is_mixture(f) and f.config.training.dataset_path is not None,
        message="data.mixture and training.dataset_path both name the corpus",
        fix="leave one of them out",
        edit=lambda _: {"training.dataset_path": None},
        why="a mixture lists all its corpora by path",
    ),
    Rule(
        id="D604",
        key="data.mixture",
        broken=lambda f: _is_mixture(f) and f.config.training.dataset == "stdlib",
        message="data.mixture lists files, and dataset = stdlib reads none",
        fix="set training.dataset to {named}, or leave data.mixture out",
        words=lambda _: {"named": _by_path()},
        edit=lambda _: {"data.mixture": {}},
        why="training.dataset says how the files of a mixture are read",
    ),
    Rule(
        id="D605",
        key="validation.dataset",
        also=("validation.enable",),
        broken=lambda f: f.config.validation.enable and f.config.validation.dataset is None,
        message="validation.enable needs validation.dataset",
        fix="set validation.dataset to {named}, or validation.enable to false",
        words=lambda _: {"named": _by_path("stdlib")},
        edit=lambda _: {"validation.enable": False},
        why="validation reads text that training does not",
    ),
    Rule(
        id="D606",
        key="validation.dataset",
        broken=lambda f: f.config.validation.dataset is not None and f.config.validation.dataset not in DATASETS,
        message="there is no dataset {validation.dataset}",
        fix="set it to {close}; known are {known}",
        words=lambda f: {"close": _validation_close(f), "known": ", ".join(DATASETS)},
        edit=lambda f: {"validation.dataset": _validation_close(f)},
        why="a dataset is the standard library's source, files of text, lines, tables or token ids, or one of the hub",
    ),
    Rule(
        id="D607",
        key="validation.dataset_path",
        also=("validation.dataset",),
        broken=lambda f: (
            f.config.validation.enable
            and f.config.validation.dataset in DATASETS[1:]
            and f.config.validation.dataset_path is None
        ),
        message="validation.dataset = {validation.dataset} needs validation.dataset_path",
        fix="set validation.dataset_path to {place}, or validation.dataset to stdlib",
        words=lambda f: {"place": _place(f.config.validation.dataset)},
        edit=lambda _: _stdlib("validation.dataset"),
        why="only stdlib brings its own text",
    ),
    Rule(
        id="D608",
        key="model.shape.vocab_size",
        needs="flavor",
        severity="warning",
        broken=lambda f: _reads_bytes(f) and f.known_shape.vocab_size < BYTE_IDS,
        message="the bytes tokenizer has ids up to 257, and vocab_size = {shape.vocab_size}: launch refuses this",
        fix="set vocab_size to 258 or more, or data.tokenizer to a smaller one",
        edit=lambda _: {"model.shape.vocab_size": BYTE_IDS},
        why="an id without a row in the embedding cannot be read",
    ),
    Rule(
        id="D609",
        key="data.streaming",
        also=("data.mixture",),
        broken=lambda f: f.config.data.streaming and _is_mixture(f) and f.config.training.dataset == "huggingface",
        message="data.streaming reads one corpus while it arrives, and data.mixture names several",
        fix="set data.streaming to false, or name one corpus in training.dataset_path",
        edit=lambda _: {"data.streaming": False},
        why="shares of a mixture are dealt by the sizes of its corpora, which a stream does not tell",
    ),
)
