"""What a corpus is refused with: records that cannot be read, or nothing to read at all.

Knows the words. Does not know how records are read (corpus.py), nor how many a run needs (loader.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.data.corpus import SUFFIXES, corpus_files
from engine.data.records import Unreadable
from engine.errors import Finding

_FINDINGS_SHOWN = 10


def unreadable_findings(unreadable: Sequence[Unreadable]) -> list[Finding]:
    """The first records that cannot be read, and how many more there are."""
    findings = [record.finding() for record in unreadable[:_FINDINGS_SHOWN]]
    more = len(unreadable) - len(findings)
    if more:
        message = f"{more:,} more records of the corpus cannot be read"
        findings.append(replace(findings[0], message=message, file=None, line=None))
    return findings


def nothing_to_read(
    dataset: str, dataset_path: str | None, *, unreadable: int = 0, first: Unreadable | None = None
) -> Finding:
    """D205, for a corpus without one document: why there is none, as far as its files tell.

    `unreadable`: records that hold none, of which `first` is the first.
    """
    what, fix = "there is no text in it", "name files that hold text"
    if unreadable:
        what = f"none of its {unreadable:,} records can be read" if unreadable > 1 else "its one record cannot be read"
        what += f"; {'the first, ' if unreadable > 1 else ''}{first.place}: {first.reason}" if first else ""
    elif dataset in SUFFIXES and _is_folder(dataset_path) and not _has_files_for(dataset, dataset_path):
        what = f"{dataset_path} holds no file named *{', *'.join(SUFFIXES[dataset][:3])}"
        what += " or alike" if len(SUFFIXES[dataset]) > 3 else ""
    # A dataset of the library, or of token ids, may be kept in files that are named as those of others.
    others = [name for name in SUFFIXES if name != dataset] if dataset in SUFFIXES else []
    other = next((name for name in others if _has_files_for(name, dataset_path)), None)
    if other is not None:
        fix = f'set training.dataset to "{other}", as what is there is named, or {fix}'
    return Finding(
        rule="D205",
        severity="error",
        key="training.dataset_path",
        message=f"the corpus has 0 documents: {what}",
        fix=fix,
    )


def _is_folder(dataset_path: str | None) -> bool:
    return os.path.isdir(os.path.expanduser(dataset_path or ""))


def _has_files_for(dataset: str, dataset_path: str | None) -> bool:
    """Whether a path is named as a dataset's files are, or is a folder with such files."""
    if _is_folder(dataset_path):
        return bool(corpus_files(dataset, dataset_path))
    path = Path(os.path.expanduser(dataset_path or ""))
    return path.name.lower().endswith(SUFFIXES[dataset])
