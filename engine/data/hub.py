"""Datasets of the library `datasets`: on this machine, or of the Hugging Face hub, whole or as they arrive.

Knows how one is named and opened. Does not know what becomes of its rows.

`training.dataset_path` is a folder of this machine (saved by the library, or of files that it loads), or a name of the
hub; after colons its configuration and its split: `allenai/c4:en:train`, `wikitext:wikitext-103-raw-v1`,
`my/folder::test`, `my/folder::train[:10%]`. Left out, the configuration is the dataset's own and the split is `train`.
Rows come in the dataset's own order, which is the same on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.data.records import Record, Unreadable
from engine.errors import Finding, TitanError
from engine.extras import HUGGINGFACE, is_here

_KEY = "training.dataset_path"
# What the library leaves in a folder that it saved: of one split, or of several.
_SAVED = ("dataset_info.json", "dataset_dict.json")
_SPLIT = "train"
_ROWS = 256
_MOST_WORDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A dataset by its place, configuration and split."""

    place: str
    configuration: str | None
    split: str

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return os.path.isdir(os.path.expanduser(self.place))


def hub_name(written: str) -> HubName:
    """What `dataset_path` names; TitanError D209 where it names nothing. A split may have colons of its own."""
    place, *rest = written.split(":", 2)
    if not place:
        message = f"dataset_path = {written} is no name of a dataset"
        raise TitanError(_finding(message, "write a folder or a name of the hub: NAME, NAME:CONFIGURATION:SPLIT"))
    configuration, split = [*rest, "", ""][:2]
    return HubName(place=place, configuration=configuration or None, split=split or _SPLIT)


def hub_documents(written: str | None, *, text_field: str, streaming: bool = False) -> Iterator[Record]:
    """The rows of a dataset in its own order; TitanError D209 where it cannot be opened, or has no such column."""
    return hub_records(hub_rows(written, text_field=text_field, streaming=streaming), str(written), text_field)


def hub_rows(written: str | None, *, text_field: str, streaming: bool = False) -> Any:
    """The dataset of the library, whole on this machine or as it arrives; TitanError as `hub_documents`."""
    if written is None:
        raise TitanError(_finding("dataset = huggingface needs dataset_path", "name a folder or a dataset of the hub"))
    if not is_here(HUGGINGFACE.package):
        message = "dataset = huggingface needs the package datasets, not installed here"
        raise TitanError(_finding(message, f"run {HUGGINGFACE.pip}"))
    name = hub_name(written)
    rows = _opened(name, written, streaming=streaming)
    columns = rows.column_names
    if columns is not None and text_field not in columns:
        message = f'{written} has no column "{text_field}"; it has {", ".join(columns)}'
        fix = "set it to the column that holds the text"
        raise TitanError(Finding(rule="D209", severity="error", key="data.text_field", message=message, fix=fix))
    # No other column is decoded: that takes most of the time, and pictures take packages that are not needed.
    return rows if columns is None else rows.select_columns([text_field])


def _opened(name: HubName, written: str, *, streaming: bool) -> Any:
    import datasets

    datasets.disable_progress_bars()
    place = os.path.expanduser(name.place)
    try:
        if name.is_local and any(os.path.exists(os.path.join(place, file)) for file in _SAVED):
            found = datasets.load_from_disk(place)
        else:
            return datasets.load_dataset(place, name.configuration, split=name.split, streaming=streaming)
    except Exception as error:  # whatever the library, its downloads and its scripts raise
        message = f"{written} cannot be opened as a dataset: {_words(error)}"
        raise TitanError(
            _finding(message, "name a folder, or NAME:CONFIGURATION:SPLIT of the hub that is there")
        ) from error
    found = _split_of(found, name, written)
    return found.to_iterable_dataset() if streaming else found


def _split_of(saved: Any, name: HubName, written: str) -> Any:
    """The split that is named of what the library saved: one, which may have no name, or several."""
    splits = saved if isinstance(saved, dict) else {str(saved.split or _SPLIT): saved}
    if name.configuration is not None:
        message = f"{written} names a configuration, and a dataset that was saved has none"
        raise TitanError(_finding(message, f"write {name.place}::{name.split}"))
    if name.split in splits:
        return splits[name.split]
    if name.split == _SPLIT and splits is not saved:
        # Nothing was asked for but the folder.
        return saved
    message = f'{written} has no split "{name.split}"; it has {", ".join(splits)}'
    raise TitanError(_finding(message, f"write {name.place}::{next(iter(splits), _SPLIT)}"))


def hub_records(rows: Any, written: str, text_field: str, *, before: int = 0) -> Iterator[Record]:
    """The documents of rows; `before`: how many of the dataset stand before them.

    TitanError D209 where they break off: what comes after is not known, so it is never left out and counted.
    """
    row = before
    batches = rows.iter(_ROWS)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:  # whatever the library, its downloads and its readers of files raise
            message = f"{written} breaks off in the {_ROWS} rows after row {row:,}: {_words(error)}"
            raise TitanError(_finding(message, "mend it, or start again once it can be reached")) from error
        if batch is None:
            return
        for text in batch.get(text_field) or _without(batch):
            row += 1
            if isinstance(text, str):
                yield text
            else:
                reason = f'its column "{text_field}" is ' + ("null" if text is None else "not a string")
                yield Unreadable(file=written, line=row, byte_offset=None, reason=reason)


def _without(batch: dict[str, list[Any]]) -> list[None]:
    """As many nulls as a batch has rows, for a stream whose columns are known only when it comes."""
    return [None] * max(map(len, batch.values()), default=0)


def _words(error: Exception) -> str:
    """What an error of the library and the one behind it say, on one line of bounded length."""
    cause = error.__cause__
    said = [" ".join(str(each).split()) or type(each).__name__ for each in (error, cause) if each is not None]
    words = ": ".join(dict.fromkeys(said))
    return words if len(words) <= _MOST_WORDS else words[: _MOST_WORDS - 3] + "..."


def _finding(message: str, fix: str) -> Finding:
    return Finding(rule="D209", severity="error", key=_KEY, message=message, fix=fix)
