"""What a checkpoint lacks is found, and named by file and tensor."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import train
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from engine.checkpoint.committed import MANIFEST
from engine.checkpoint.manifest import read_manifest
from engine.checkpoint.places import place
from engine.checkpoint.store import METADATA
from engine.checkpoint.whole import Examined, Fault, examine, expected, uncovered

SHARD, WEIGHT = "__0_0.distcp", "layers.1.attention.wq.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that a run has written."""
    run = tmp_path_factory.mktemp("run")
    train({"training__steps": 1}, str(run))
    return run / "checkpoints" / "step-1"


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "step-1"))


def resign(checkpoint: Path, **changed: Any) -> None:
    """Makes the manifest's sizes and checksum those of the files as they are now."""
    written = json.loads((checkpoint / MANIFEST).read_bytes())
    files = {path.name: path.stat().st_size for path in checkpoint.iterdir() if path.name != MANIFEST}
    written |= {"files": files, "crc32": {METADATA: zlib.crc32((checkpoint / METADATA).read_bytes())}} | changed
    (checkpoint / MANIFEST).write_text(json.dumps(written))


def change_metadata(checkpoint: Path, change: Callable[[Any], None]) -> None:
    """Writes `.metadata` anew as `change` has made it."""
    metadata = pickle.loads((checkpoint / METADATA).read_bytes())
    change(metadata)
    (checkpoint / METADATA).write_bytes(pickle.dumps(metadata))
    resign(checkpoint)


def place_of(checkpoint: Path, tensor: str) -> Any:
    """Where the first piece of a tensor stands."""
    stored = pickle.loads((checkpoint / METADATA).read_bytes()).storage_data
    return next(place for index, place in stored.items() if index.fqn == tensor)


def overwrite(checkpoint: Path, at: int, data: bytes) -> None:
    with (checkpoint / SHARD).open("r+b") as file:
        file.seek(at)
        file.write(data)


def only(found: Examined) -> Fault:
    [fault] = found.faults
    return fault


@pytest.mark.parametrize("values", [False, True])
def test_a_checkpoint_as_it_was_written_is_whole(saved: Path, values: bool) -> None:
    found = examine(saved, values=values)
    states = 3 * len([name for name in expected(read_manifest(saved)) if not name.startswith("optimizer.")])
    assert found.faults == ()
    assert (found.files, found.tensors, found.pieces) == (2, states + 1, states + 1)
    assert (found.read_bytes > 0) is values


def test_a_checkpoint_under_a_url_is_examined_too(saved: Path) -> None:
    assert examine(place(f"local://{saved}", key=""), values=True) == examine(saved, values=True)


def test_files_of_another_size_or_none_are_named_and_the_rest_is_still_looked_at(checkpoint: Path) -> None:
    (checkpoint / SHARD).write_bytes(b"x")
    found = examine(checkpoint, values=True)
    assert only(found).file == SHARD
    assert only(found).why.startswith("it has 1 bytes, and ")
    (checkpoint / SHARD).unlink()
    assert only(examine(checkpoint, values=True)) == Fault(file=SHARD, why="it is not there")


def test_metadata_that_was_changed_is_not_even_unpickled(checkpoint: Path) -> None:
    raw = bytearray((checkpoint / METADATA).read_bytes())
    raw[len(raw) // 2] ^= 1
    (checkpoint / METADATA).write_bytes(raw)
    fault = only(examine(checkpoint, values=False))
    assert (fault.file, "CRC-32 differs" in fault.why) == (METADATA, True)


def test_metadata_that_does_not_read_is_a_fault(checkpoint: Path) -> None:
    (checkpoint / METADATA).write_bytes(b"\x80junk")
    resign(checkpoint)
    fault = only(examine(checkpoint, values=False))
    assert (fault.file, fault.why.startswith("it cannot be read: ")) == (METADATA, True)


@pytest.mark.parametrize("name", [WEIGHT, f"optimizer.exp_avg_sq.{WEIGHT}", "random.cpu.00000"])
def test_a_tensor_that_is_not_there_is_named(checkpoint: Path, name: str) -> None:
    change_metadata(checkpoint, lambda metadata: metadata.state_dict_metadata.pop(name))
    assert only(examine(checkpoint, values=False)) == Fault(file=METADATA, tensor=name, why="it is not there")


def test_a_tensor_of_another_model_or_precision_is_named(checkpoint: Path) -> None:
    resign(checkpoint, dtype="bfloat16")
    found = examine(checkpoint, values=False).faults
    assert {fault.tensor for fault in found} == expected(read_manifest(checkpoint)).keys()
    assert found[0].why.startswith("it is float32 of ")
    assert " and the model's is bfloat16 of " in found[0].why


def test_a_piece_that_is_missing_is_a_hole(checkpoint: Path) -> None:
    change_metadata(checkpoint, lambda metadata: metadata.state_dict_metadata[WEIGHT].chunks.clear())
    fault = only(examine(checkpoint, values=False))
    assert (fault.tensor, fault.why.endswith(" values are in no piece")) == (WEIGHT, True)


def test_a_piece_without_a_place_is_named(checkpoint: Path) -> None:
    def forget(metadata: Any) -> None:
        kept = {index: at for index, at in metadata.storage_data.items() if index.fqn != WEIGHT}
        metadata.storage_data = kept

    change_metadata(checkpoint, forget)
    assert only(examine(checkpoint, values=False)).tensor == WEIGHT


def test_a_piece_twice_lies_over_itself(checkpoint: Path) -> None:
    def twice(metadata: Any) -> None:
        tensor = metadata.state_dict_metadata[WEIGHT]
        [chunk] = tensor.chunks
        tensor.chunks.append(ChunkStorageMetadata(offsets=chunk.offsets, sizes=chunk.sizes))

    change_metadata(checkpoint, twice)
    assert "lie over each other" in only(examine(checkpoint, values=False)).why


def test_bytes_that_are_no_archive_are_found_without_reading_values(checkpoint: Path) -> None:
    overwrite(checkpoint, place_of(checkpoint, WEIGHT).offset, b"junk")
    fault = only(examine(checkpoint, values=False))
    assert (fault.file, fault.tensor) == (SHARD, WEIGHT)


def test_a_bit_that_flipped_is_found_where_values_are_read(checkpoint: Path) -> None:
    stored = place_of(checkpoint, WEIGHT)
    overwrite(checkpoint, stored.offset + stored.length // 2, b"\x7f")
    assert examine(checkpoint, values=False).faults == ()
    fault = only(examine(checkpoint, values=True))
    assert (fault.file, fault.tensor) == (SHARD, WEIGHT)
    assert "is damaged: the CRC-32 of archive/data/0 differs" in fault.why


def test_values_that_are_not_finite_are_counted(checkpoint: Path) -> None:
    stored = place_of(checkpoint, WEIGHT)
    raw = io.BytesIO((checkpoint / SHARD).read_bytes()[stored.offset : stored.offset + stored.length])
    tensor = torch.load(raw, weights_only=True)
    tensor[0, 0], tensor[1, 1] = float("nan"), float("inf")
    again = io.BytesIO()
    torch.save(tensor, again)
    assert len(again.getvalue()) == stored.length
    overwrite(checkpoint, stored.offset, again.getvalue())
    fault = only(examine(checkpoint, values=True))
    assert (fault.tensor, fault.why) == (
        WEIGHT,
        f"its piece at (0, 0) has 2 of {tensor.numel():,} values that are not finite",
    )


def test_a_manifest_of_the_schema_before_is_read(checkpoint: Path) -> None:
    written = json.loads((checkpoint / MANIFEST).read_bytes())
    old = {name: value for name, value in written.items() if name not in ("random", "committed_s", "crc32")}
    (checkpoint / MANIFEST).write_text(json.dumps(old | {"schema": 1}))
    assert examine(checkpoint, values=True).faults == ()


def test_a_manifest_of_a_later_schema_is_a_fault(checkpoint: Path) -> None:
    resign(checkpoint, schema=99)
    assert only(examine(checkpoint, values=False)).file == MANIFEST


@pytest.mark.parametrize(
    ("boxes", "why"),
    [
        ([((0, 0), (4, 6))], ""),
        ([((0, 0), (2, 6)), ((2, 0), (2, 6)), ((4, 0), (0, 6))], ""),
        ([((0, 0), (4, 3)), ((0, 3), (2, 3)), ((2, 3), (2, 3))], ""),
        ([((0, 0), (2, 6))], "12 of its 24 values are in no piece"),
        ([((0, 0), (3, 6)), ((2, 0), (2, 6))], "its pieces at (0, 0) and (2, 0) lie over each other"),
        ([((0, 0), (4, 6)), ((1, 1), (1, 1))], "its pieces at (0, 0) and (1, 1) lie over each other"),
        ([((0, 0), (5, 6))], "its piece at (0, 0) goes beyond its end"),
        ([], "24 of its 24 values are in no piece"),
    ],
)
def test_pieces_are_a_tensor_once(boxes: Any, why: str) -> None:
    assert uncovered((4, 6), boxes) == why


def test_a_value_without_an_axis_is_a_piece() -> None:
    assert uncovered((), [((), ())]) == ""
    assert "lie over each other" in uncovered((), [((), ()), ((), ())])
