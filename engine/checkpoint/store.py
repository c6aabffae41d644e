"""Writing and reading the tensors of a checkpoint, each rank its own share, through torch.distributed.checkpoint (DCP).

Knows the order on disk: shards, DCP's `.metadata`, and last the manifest, put into place by rank 0 once every rank
has said that it is done. Does not know what is saved, only that it is a flat table of names to tensors, plain ones and
DTensors. Names and DTensors are all that DCP needs to give a run of another layout its own shares.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from engine.checkpoint import places
from engine.checkpoint.agreed import FailedOnRank, on_all, on_first, reason
from engine.checkpoint.committed import MANIFEST, delete, is_committed, keep_aside
from engine.checkpoint.manifest import Manifest

METADATA = ".metadata"
"""DCP's own file: which tensor, or piece of one, stands in which file and where."""


class SaveFailed(FailedOnRank):
    """A checkpoint could not be written; what was written of it is deleted again."""


class LoadFailed(FailedOnRank):
    """A checkpoint could not be read."""


def save(
    tensors: Mapping[str, Tensor],
    checkpoint: Path,
    manifest: Manifest,
    *,
    group: dist.ProcessGroup,
    needed_bytes: int,
    planner: DefaultSavePlanner | None = None,
) -> Manifest:
    """Writes a checkpoint and commits it; every rank of `group` calls it at once. Gives the manifest as it stands.

    Sends plans, no tensors. What stands in the folder uncommitted is deleted first. SaveFailed on all
    ranks where one of them fails; nothing of this checkpoint is left then, as far as it can be deleted.
    `needed_bytes` is what its tensors take, for that message: files and .metadata add 1 or 2 KiB to each. `planner`
    gives tensors when they are written, where they are not in memory.
    """
    what = f"saving {checkpoint}"
    disk = _disk_of(checkpoint)
    try:
        on_first(group, what, lambda: _make_way(checkpoint))
        writer = _Writer(checkpoint, disk, copies_ahead=any(tensor.is_cuda for tensor in tensors.values()))
        planner = planner or DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        dcp_save(dict(tensors), storage_writer=writer, planner=planner, process_group=group)
        return on_first(group, what, lambda: _commit(checkpoint, manifest))
    except FailedOnRank as failure:
        failed, why = failure.rank, failure.why
    except CheckpointException as failure:
        failed = min(failure.failures)
        why = reason(failure.failures[failed][0])
    raise _undone(checkpoint, group=group, failed=failed, why=why, trouble=disk.trouble, needed_bytes=needed_bytes)


def load(tensors: Mapping[str, Tensor], checkpoint: Path, *, group: dist.ProcessGroup) -> None:
    """Reads a checkpoint into tensors, whatever layout wrote it; every rank of `group` calls it at once.

    Names that are not asked for are not read. LoadFailed on all ranks where one of them fails.
    """
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    failed: tuple[int, str] | None = None
    try:
        dcp_load(dict(tensors), storage_reader=reader_of(checkpoint), planner=planner, process_group=group)
    except CheckpointException as failure:
        rank = min(failure.failures)
        failed = rank, reason(failure.failures[rank][0])
    if failed is not None:
        rank, why = failed
        hosts = on_all(group, f"loading {checkpoint}", lambda: os.uname().nodename)
        raise LoadFailed(f"loading {checkpoint}", why, rank=rank, host=hosts[rank])


def reader_of(checkpoint: Path) -> FileSystemReader:
    """torch's reader of a checkpoint, wherever that stands."""
    reader = FileSystemReader(checkpoint if not places.is_remote(checkpoint) else "")
    reader.fs, reader.path = _disk_of(checkpoint), checkpoint
    return reader


# What torch takes by itself.
_COPIED_AHEAD_BYTES = 10_000_000


class _Writer(FileSystemWriter):
    """torch's writer on one of the file systems here, which bring to the disk what they write."""

    def __init__(self, checkpoint: Path, disk: _Disk, *, copies_ahead: bool) -> None:
        # With anything to copy ahead torch waits after each MB for all that is queued on the GPU, also for tensors that
        # are in the host's memory: beside training that is about a step each time.
        ahead_bytes = _COPIED_AHEAD_BYTES if copies_ahead else 0
        folder = checkpoint if not places.is_remote(checkpoint) else ""
        super().__init__(folder, sync_files=False, per_thread_copy_ahead=ahead_bytes)
        self.fs, self.path = disk, checkpoint

    @property
    def checkpoint_id(self) -> str:
        """The place in `.metadata`: text, which any Python can read again."""
        return str(self.path)


def _disk_of(checkpoint: Path) -> _Disk:
    return _Store() if places.is_remote(checkpoint) else _Disk()


class _Disk(FileSystem):
    """torch's file system, with what a checkpoint needs of it: bytes that are on the disk, and why a write failed.

    torch.save tells only that its file has a wrong length, and torch's writer syncs a file whose last bytes Python
    still holds.
    """

    def __init__(self) -> None:
        self.trouble: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        """A file, which is on the disk once it is closed or the block is left."""
        try:
            with open(path, mode) as file:
                stream = _Stream(file, self)
                yield stream
                stream.close()
        except OSError as error:
            self.trouble = self.trouble or error
            raise


class _Store(_Disk):
    """The same in a place that fsspec reaches; its paths are UPaths."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        """An object, which is there once the block is left."""
        there = cast(Path, path)
        try:
            with places.reached(there), there.open(mode) as file:
                yield _Stream(cast(IO[bytes], file), self, path=there)
        except OSError as error:
            self.trouble = self.trouble or error
            raise

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """As it is: it is a path already."""
        return path

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str | os.PathLike[str]:
        """A name in a folder."""
        return cast(Path, path) / suffix

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Writes it again under its new name: `.metadata`, which is small."""
        places.put(cast(Path, new_path), places.read(cast(Path, path)))
        places.unlink(cast(Path, path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Makes a folder, where there are folders."""
        places.make_folder(cast(Path, path))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether it is there."""
        return places.exists(cast(Path, path))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Deletes a file."""
        places.unlink(cast(Path, path))


class _Stream:
    """A file that tells its disk of a write that fails, and is synced when it is closed; `path` is that of a remote."""

    def __init__(self, file: IO[bytes], disk: _Disk, *, path: Path | None = None) -> None:
        self._file, self._disk, self._path = file, disk, path

    def write(self, data: Any) -> int:
        """Writes all of it."""
        try:
            with places.reached(self._path or Path()):
                return self._file.write(data)
        except OSError as error:
            self._disk.trouble = self._disk.trouble or error
            raise

    def close(self) -> None:
        """Brings it to the disk, and closes it; once more is nothing."""
        if not self._file.closed:
            if self._file.writable() and self._path is None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _make_way(checkpoint: Path) -> None:
    """Deletes what a save that never ended left in the folder, and makes it; a committed one is never deleted."""
    if is_committed(checkpoint):
        keep_aside(checkpoint)
    elif places.exists(checkpoint):
        delete(checkpoint)
    places.make_folder(checkpoint)
    places.sync(checkpoint.parent)


def _commit(checkpoint: Path, manifest: Manifest) -> Manifest:
    """Puts the manifest in: the checkpoint is there from then on."""
    files = places.sizes_in(checkpoint)
    files.pop(MANIFEST, None)
    for name, size in _written_bytes(checkpoint).items():
        found = files.get(name, 0)
        if found < size:
            raise OSError(f"{name} has {found:,} bytes, and {size:,} were written: is the folder on one disk for all?")
    checksum = zlib.crc32(places.read(checkpoint / METADATA))
    whole = manifest.with_files(files, crc32={METADATA: checksum}, now_s=time.time())
    places.put(checkpoint / MANIFEST, json.dumps(whole.to_json(), indent=1).encode() + b"\n")
    return whole


def _written_bytes(checkpoint: Path) -> dict[str, int]:
    """What `.metadata` says that ranks wrote: the least size of each of their files."""
    sizes: dict[str, int] = {}
    for place in reader_of(checkpoint).read_metadata().storage_data.values():
        sizes[place.relative_path] = max(sizes.get(place.relative_path, 0), place.offset + place.length)
    return sizes


def _undone(
    checkpoint: Path,
    *,
    group: dist.ProcessGroup,
    failed: int,
    why: str,
    trouble: OSError | None,
    needed_bytes: int,
) -> SaveFailed:
    """Deletes what was written, and says the same on all ranks: which failed first, where, why, and the room there."""
    if dist.get_rank(group) == 0:
        with contextlib.suppress(OSError):
            delete(checkpoint)
    dist.barrier(group)

    def state() -> tuple[str, str, int | None]:
        return os.uname().nodename, reason(trouble) if trouble is not None else "", _free_bytes(checkpoint)

    host, words, free_bytes = on_all(group, f"saving {checkpoint}", state)[failed]
    room = "" if free_bytes is None else f", and {free_bytes:,} are free there without it"
    why = f"{words or why}; its tensors take {needed_bytes:,} bytes, its files somewhat more{room}"
    return SaveFailed(f"saving {checkpoint}", why, rank=failed, host=host)


def _free_bytes(checkpoint: Path) -> int | None:
    """What is free on the disk of a folder that may be gone; None where that does not tell."""
    if places.is_remote(checkpoint):
        return None
    return places.free_bytes(next(folder for folder in (checkpoint, *checkpoint.parents) if folder.exists()))
