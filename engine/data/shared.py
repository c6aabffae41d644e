"""Arrays that processes have in common: memory without a name, or files that are mapped.

Knows memory that belongs to open descriptors alone, so that nothing is left of it once its processes are gone, and that
has no limit of its own as /dev/shm has. Does not know what is in the arrays.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data.mapped import MappedIds


def nameless(size_bytes: int) -> int:
    """A descriptor of `size_bytes` bytes that processes may share; memory where the system can, else a deleted file."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("titan-data")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, max(1, size_bytes))
    return handle


def mapped(handle: int, size_bytes: int) -> memoryview:
    """All bytes of a descriptor, for reading and writing; what is written is seen by everyone who maps it."""
    return memoryview(mmap.mmap(handle, max(1, size_bytes)))[:size_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where another process finds an array of one dimension: in a file, or in a descriptor that it was given."""

    file: str | None
    handle: int | None
    dtype: str
    offset_bytes: int
    length: int

    def ids(self) -> NDArray[Any] | MappedIds:
        """The array as a piece of a stream: one of a file is mapped when it is first read: there may be many."""
        if self.file is None:
            return self.open()
        return MappedIds(file=self.file, dtype=self.dtype, offset_bytes=self.offset_bytes, count=self.length)

    def open(self) -> NDArray[Any]:
        """The array, mapped and not to be written."""
        dtype = np.dtype(self.dtype)
        if self.length == 0:
            return np.empty(0, dtype=dtype)
        if self.file is not None:
            return np.memmap(self.file, dtype=dtype, mode="r", offset=self.offset_bytes, shape=(self.length,))
        assert self.handle is not None, "an array has a place"
        view = mapped(self.handle, self.offset_bytes + self.length * dtype.itemsize)
        array: NDArray[Any] = np.frombuffer(view, dtype=dtype, count=self.length, offset=self.offset_bytes)
        array.flags.writeable = False
        return array


def placed(array: NDArray[Any] | MappedIds) -> Place:
    """Where others find an array: its file if it is mapped from one, else memory that its bytes are copied to."""
    if isinstance(array, MappedIds):
        return Place(
            file=array.file, handle=None, dtype=array.dtype, offset_bytes=array.offset_bytes, length=array.count
        )
    if isinstance(array, np.memmap) and array.filename is not None and array.flags.c_contiguous:
        return Place(
            file=os.fspath(array.filename),
            handle=None,
            dtype=array.dtype.str,
            offset_bytes=int(array.offset),
            length=len(array),
        )
    handle = nameless(array.nbytes)
    mapped(handle, array.nbytes)[:] = np.ascontiguousarray(array).data.cast("B")
    return Place(file=None, handle=handle, dtype=array.dtype.str, offset_bytes=0, length=len(array))
