"""Files of text that may be compressed, opened by their name: gzip and Zstandard.

Knows what a name says and how a file that breaks off is told. Does not know what the text means (json_lines.py).
"""

from __future__ import annotations

import gzip
import sys
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

GZIP, ZSTANDARD = ".gz", ".zst"
SUFFIXES = (GZIP, ZSTANDARD)
"""How compressed files are named that can be read."""


def opened(path: Path) -> BinaryIO:
    """The text of a file, to be read as bytes; of several members or frames all of it."""
    suffix = path.suffix.lower()
    if suffix == GZIP:
        return cast(BinaryIO, gzip.open(path, "rb"))
    if suffix == ZSTANDARD:
        zstd = _zstd()
        # The largest windows too: dumps of the web are packed with them.
        widest = zstd.DecompressionParameter.window_log_max
        return cast(BinaryIO, zstd.open(path, "rb", options={widest: widest.bounds()[1]}))
    return path.open("rb")


def broken(path: Path) -> tuple[type[Exception], ...]:
    """What reading a file raises where it is not what its name says, or not all of it."""
    of_any = OSError, EOFError, zlib.error
    return (*of_any, _zstd().ZstdError) if path.suffix.lower() == ZSTANDARD else of_any


def trouble_of(error: Exception) -> str:
    """Why a file cannot be read, in lower case."""
    if isinstance(error, EOFError):
        return "it breaks off before the end of what was compressed"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, gzip.BadGzipFile | zlib.error):
        return f"it is no whole gzip file: {str(error).lower()}"
    return f"it is no whole Zstandard file: {str(error).lower()}" if not isinstance(error, OSError) else str(error)


def _zstd() -> Any:
    """The standard library's module from Python 3.14 on, and before that its own backport."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
