"""Parquet files, a document a row.

Knows columns and row groups, and holds a few thousand rows at a time. Does not know which files there are (corpus.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.data.records import Meter, Record, Unreadable
from engine.errors import Finding, TitanError
from engine.extras import PARQUET, is_here

_ROWS = 1024


def parquet_documents(files: list[Path], meter: Meter, *, column: str) -> Iterator[Record]:
    """The documents of files, streamed as far as the meter goes; rows count from 1.

    TitanError D208 where this Python cannot read them, or a file has no such column.
    """
    if not is_here(PARQUET.package):
        message = "dataset = parquet needs the package pyarrow, not installed here"
        raise TitanError(_finding("training.dataset", message, f"run {PARQUET.pip}"))
    return _documents(files, meter, column)


def _documents(files: list[Path], meter: Meter, column: str) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    for path in files:
        if meter.left == 0:
            return
        row = 0
        try:
            with parquet.ParquetFile(path) as file:
                _require_text(path, file.schema_arrow, column)
                for batch in file.iter_batches(batch_size=_ROWS, columns=[column]):
                    for text in batch.column(0).to_pylist():
                        row += 1
                        if meter.left == 0:
                            return
                        if text is None:
                            reason = f'its column "{column}" is null'
                            yield Unreadable(file=str(path), line=row, byte_offset=None, reason=reason)
                            continue
                        meter.read_bytes += _counted(text, meter)
                        yield text
        except (OSError, pyarrow.ArrowException) as error:
            reason = (getattr(error, "strerror", None) or str(error)).splitlines()[0].lower()
            reason += f", after {row:,} rows" if row else ""
            yield Unreadable(file=str(path), line=None, byte_offset=None, reason=reason)


def _counted(text: str, meter: Meter) -> int:
    """Bytes that a text takes of what may be read; nothing is cut, so never more than is left."""
    if meter.most_bytes is None:
        return 0
    return min(meter.left, len(text.encode()))


def _require_text(path: Path, schema: Any, column: str) -> None:
    import pyarrow

    if column not in schema.names:
        has = ", ".join(schema.names[:8]) + (", ..." if len(schema.names) > 8 else "")
        message = f'{path} has no column "{column}"; it has {has}'
        raise TitanError(_finding("data.text_field", message, "set it to the column that holds the text"))
    kind = schema.field(column).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        message = f'the column "{column}" of {path} is of {kind}, not of text'
        raise TitanError(_finding("data.text_field", message, "set it to the column that holds the text"))


def _finding(key: str, message: str, fix: str) -> Finding:
    return Finding(rule="D208", severity="error", key=key, message=message, fix=fix)
