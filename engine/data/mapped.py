"""Token ids in a file, mapped into memory when they are first asked for.

Knows a file, how its ids are written, and where they begin. Does not know what they mean, nor which files belong
together (prepared.py). A value of this kind is small wherever it is sent; each process maps the file for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A mapped file takes a file descriptor, of which a process often has 1,024.
_MOST_MAPPED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedIds:
    """`count` ids of one file from `offset_bytes` on; `dtype` as numpy spells it, little-endian: `<u2`."""

    file: str
    dtype: str
    offset_bytes: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, places: slice) -> NDArray[Any]:
        """Ids as they lie in the file, not copied; OSError where it is gone."""
        return self.array[places]

    @property
    def array(self) -> NDArray[Any]:
        """All of them, mapped."""
        return _mapped(self)


@lru_cache(maxsize=_MOST_MAPPED)
def _mapped(ids: MappedIds) -> NDArray[Any]:
    if ids.count == 0:
        # Nothing can be mapped of an empty file.
        return np.empty(0, dtype=ids.dtype)
    mapped = np.memmap(ids.file, dtype=ids.dtype, mode="r", offset=ids.offset_bytes, shape=(ids.count,))
    # As a plain array: each slice of a memmap object is another one, which takes four times as long to make.
    return np.asarray(mapped)
