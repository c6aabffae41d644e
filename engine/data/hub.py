"""Datasets of the library `datasets`: on this machine, or of the Hugging Face hub, whole or as they arrive.

Knows how one is named and opened. Does not know what becomes of its rows.

`training.dataset_path` is a folder of this machine (saved by the library, or of files that it loads), or a name of the
hub; after colons its configuration and its split: `allenai/c4:en:train`, `wikitext:wikitext-103-raw-v1`,
`my/folder::test`. Left out, the configuration is the dataset's own and the split is `train`.
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
    """What `dataset_path` names; TitanError D209 where it has more than three parts."""
    place, *rest = written.split(":")
    if len(rest) > 2 or not place:
        message = f"dataset_path = {written} is no name of a dataset"
        raise TitanError(_finding(message, "write a folder or a name of the hub: NAME, NAME:CONFIGURATION:SPLIT"))
    configuration, split = [*rest, "", ""][:2]
    return HubName(place=place, configuration=configuration or None, split=split or "train")


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
    return rows


def _opened(name: HubName, written: str, *, streaming: bool) -> Any:
    import datasets

    datasets.disable_progress_bars()
    place = os.path.expanduser(name.place)
    try:
        if name.is_local and os.path.exists(os.path.join(place, "dataset_info.json")):
            found = datasets.load_from_disk(place)
            return found.to_iterable_dataset() if streaming else found
        if name.is_local and os.path.exists(os.path.join(place, "dataset_dict.json")):
            found = datasets.load_from_disk(place)[name.split]
            return found.to_iterable_dataset() if streaming else found
        return datasets.load_dataset(place, name.configuration, split=name.split, streaming=streaming)
    except Exception as error:  # whatever the library, its downloads and its scripts raise
        words = str(error).strip().splitlines() or [type(error).__name__]
        message = f"{written} cannot be opened as a dataset: {words[0]}"
        raise TitanError(
            _finding(message, "name a folder, or NAME:CONFIGURATION:SPLIT of the hub that is there")
        ) from error


def hub_records(rows: Any, written: str, text_field: str, *, before: int = 0) -> Iterator[Record]:
    """The documents of rows; `before`: how many of the dataset stand before them."""
    for number, row in enumerate(rows, start=before + 1):
        text = row.get(text_field)
        if isinstance(text, str):
            yield text
        else:
            reason = f'its column "{text_field}" is ' + ("null" if text is None else "not a string")
            yield Unreadable(file=written, line=number, byte_offset=None, reason=reason)


def _finding(message: str, fix: str) -> Finding:
    return Finding(rule="D209", severity="error", key=_KEY, message=message, fix=fix)
