"""Parquet files, a document a row.

Knows columns and row groups, and holds some megabytes of rows at a time, however large their group is. Does not know
which files there are (corpus.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.data.records import Meter, Record, Unreadable
from engine.errors import Finding, TitanError
from engine.extras import PARQUET, is_here

_ROWS, _ROWS_BYTES = 1024, 8 << 20
# Of a group's compressed bytes so much is read at once; without it the library reads the whole group.
_BUFFER_BYTES = 1 << 20


def parquet_documents(files: list[Path], meter: Meter, *, column: str) -> Iterator[Record]:
    """The documents of files, streamed as far as the meter goes; rows count from 1.

    A row group that cannot be read is told, and the next one is gone on with. TitanError D208 where this Python cannot
    read such files, or a file has no such column.
    """
    _require_here()
    return _documents(files, meter, column)


def parquet_between(path: Path, begin: int, end: int, *, column: str) -> Iterator[Record]:
    """The documents of the row groups [begin, end) of a file, with the places that they have in all of it."""
    _require_here()
    return _rows_of(path, Meter(), column, begin=begin, end=end)


def row_groups_bytes(path: Path) -> list[int]:
    """Bytes that each row group of a file holds, unpacked; none where it cannot be read. TitanError D208."""
    _require_here()
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            return [file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups)]
    except (OSError, pyarrow.ArrowException):
        return []


def _require_here() -> None:
    if not is_here(PARQUET.package):
        message = "dataset = parquet needs the package pyarrow, not installed here"
        raise TitanError(_finding("training.dataset", message, f"run {PARQUET.pip}"))


def _documents(files: list[Path], meter: Meter, column: str) -> Iterator[Record]:
    for path in files:
        if meter.left == 0:
            return
        yield from _rows_of(path, meter, column)


def _rows_of(path: Path, meter: Meter, column: str, *, begin: int = 0, end: int | None = None) -> Iterator[Record]:
    """The documents of row groups of a file: all of them, or [begin, end)."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            _require_text(path, file.schema_arrow, column)
            leaf = [file.schema.column(number).path for number in range(len(file.schema))].index(column)
            row = sum(file.metadata.row_group(group).num_rows for group in range(begin))
            for group in range(begin, file.num_row_groups if end is None else end):
                rows = file.metadata.row_group(group).num_rows
                batches = file.iter_batches(_rows_at_once(file.metadata.row_group(group), leaf), [group], [column])
                yield from _group(path, batches, meter, column=column, before=row)
                if meter.left == 0:
                    return
                row += rows
    except (OSError, pyarrow.ArrowException) as error:
        yield Unreadable(file=str(path), line=None, byte_offset=None, reason=_words(error))


def _group(path: Path, batches: Iterator[Any], meter: Meter, *, column: str, before: int) -> Iterator[Record]:
    """The documents of a row group; `before`: how many rows of the file stand before it."""
    import pyarrow

    row = before
    try:
        for batch in batches:
            for text in _texts(batch.column(column)):
                if meter.left == 0:
                    return
                row += 1
                if isinstance(text, str):
                    meter.read_bytes += _counted(text, meter)
                    yield text
                else:
                    reason = f'its column "{column}" is ' + ("null" if text is None else "not UTF-8")
                    yield Unreadable(file=str(path), line=row, byte_offset=None, reason=reason)
    except (OSError, pyarrow.ArrowException) as error:
        reason = f"{_words(error)}: the row group of row {row + 1:,} is left out from there"
        yield Unreadable(file=str(path), line=None, byte_offset=None, reason=reason)


def _rows_at_once(group: Any, leaf: int) -> int:
    """As many rows of a group as take some megabytes."""
    size_bytes, rows = int(group.column(leaf).total_uncompressed_size), int(group.num_rows)
    return max(1, min(_ROWS, _ROWS_BYTES * rows // max(1, size_bytes)))


def _texts(column: Any) -> list[str | bytes | None]:
    """The values of a column; bytes where they are not UTF-8, which the library does not look at."""
    import pyarrow

    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        values = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
        return [_text_or_bytes(raw) for raw in values.cast(pyarrow.large_binary()).to_pylist()]


def _text_or_bytes(raw: bytes | None) -> str | bytes | None:
    try:
        return raw if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _words(error: Exception) -> str:
    """Why a file cannot be read, in lower case."""
    words = str(getattr(error, "strerror", None) or error).splitlines() or [type(error).__name__]
    return words[0].rstrip(".").lower()


def _counted(text: str, meter: Meter) -> int:
    """Bytes that a text takes of what may be read; nothing is cut, so never more than is left."""
    if meter.most_bytes is None:
        return 0
    return min(meter.left, len(text.encode()))


def _require_text(path: Path, schema: Any, column: str) -> None:
    fix = "set it to the column that holds the text"
    count = schema.names.count(column)
    if count != 1:
        has = ", ".join(schema.names[:8]) + (", ..." if len(schema.names) > 8 else "")
        message = f'{path} has {f"{count} columns" if count else "no column"} "{column}"; it has {has}'
        raise TitanError(_finding("data.text_field", message, fix))
    kind = schema.field(column).type
    if not _is_text(kind):
        message = f'the column "{column}" of {path} is of {kind}, not of text'
        raise TitanError(_finding("data.text_field", message, fix))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _finding(key: str, message: str, fix: str) -> Finding:
    return Finding(rule="D208", severity="error", key=key, message=message, fix=fix)
