"""Checkpoints stand under URLs as they do in folders: whole or not at all, listed, deleted and put aside."""

from __future__ import annotations

import importlib.machinery
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_pool import GlooPool
from resuming import train

import engine.extras
from engine.checkpoint import places
from engine.checkpoint.beginning import checkpoints_of, initial_checkpoint
from engine.checkpoint.committed import (
    MANIFEST,
    aside_in,
    checkpoints_in,
    damage,
    delete,
    is_committed,
    put_aside,
    step_to_load,
    steps_to_delete,
    torn_finding,
    whole_step_to_load,
)
from engine.checkpoint.places import place, reached
from engine.config import Config
from engine.errors import Finding, TitanError
from engine.events import event_file, read_new
from engine.keys import with_values


@pytest.fixture(params=["folder", "local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder for checkpoints: on the disk, on the disk by way of fsspec, and in its memory."""
    written = {"folder": f"{tmp_path}/c", "local": f"local://{tmp_path}/c", "memory": f"memory://{uuid.uuid4().hex}/c"}
    return place(written[request.param], key="checkpoint.folder")


def save(folder: Path, step: int, manifest: str | None = "") -> None:
    """A checkpoint of one shard; without a manifest where that is None, with a whole one where it is empty."""
    checkpoint = folder / f"step-{step}"
    places.make_folder(checkpoint)
    places.put(checkpoint / "__0_0.distcp", b"shard")
    if manifest is not None:
        whole = json.dumps({"step": step, "files": {"__0_0.distcp": 5}})
        places.put(checkpoint / MANIFEST, (manifest or whole).encode())


def refused(written: str) -> Finding:
    with pytest.raises(TitanError) as caught:
        place(written, key="checkpoint.folder")
    [finding] = caught.value.findings
    return finding


# ---- what a path is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("checkpoints", "/run/checkpoints"),
        ("/far/away", "/far/away"),
        ("~/kept", str(Path("~/kept").expanduser())),
        ("file:///far/away", "/far/away"),
    ],
)
def test_a_local_path_is_a_plain_path(written: str, meant: str) -> None:
    config = with_values(Config(), {"checkpoint.folder": written})
    found = checkpoints_of(config, Path("/run"))
    assert (type(found), str(found)) == (type(Path()), meant)


def test_a_local_path_needs_nothing_of_fsspec() -> None:
    code = (
        "import sys; from engine.checkpoint.places import place, exists; exists(place('/tmp', key=''));"
        "sys.exit(any(name.partition('.')[0] in ('fsspec', 'upath', 'torch') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_url_keeps_its_form() -> None:
    assert str(place("memory://bucket/a/b", key="") / "step-1") == "memory://bucket/a/b/step-1"


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    finding = refused("s4://bucket/a")
    assert (finding.rule, finding.key) == ("D639", "checkpoint.folder")
    assert finding.message == "s4://bucket/a is in no place that fsspec knows: there is no s4://"


def test_a_file_url_without_a_host_is_of_this_machine_alone() -> None:
    assert refused("file://a/b").fix == "write file:///a/b, or the path alone"


@pytest.mark.parametrize(
    ("here", "message", "fix"),
    [
        ((), "needs the packages universal-pathlib and s3fs", "'titan-train[remote]' s3fs"),
        (("upath",), "needs the package s3fs", "'titan-train[remote]' s3fs"),
    ],
)
def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, here: tuple[str, ...], message: str, fix: str
) -> None:
    spec = importlib.machinery.ModuleSpec("found", None, origin="found.py")
    monkeypatch.setattr(engine.extras, "find_spec", lambda name: spec if name in here else None)
    finding = refused("s3://bucket/a")
    assert finding.message == f"s3://bucket/a {message}, not installed here"
    assert finding.fix == f"python -m pip install {fix}"


def test_whatever_a_client_raises_is_an_oserror() -> None:
    with pytest.raises(OSError, match="memory://a: no credentials"), reached(place("memory://a", key="")):
        raise RuntimeError("no credentials")


# ---- the cases of a folder ---------------------------------------------------------------------


@pytest.mark.parametrize("manifest", [None, "{", "\0"], ids=["none", "cut", "nul"])
def test_c32_the_newest_committed_step_is_loaded_wherever_it_stands(folder: Path, manifest: str | None) -> None:
    save(folder, 100)
    save(folder, 200, manifest)
    found = checkpoints_in(folder)
    assert (step_to_load(found, -1), found.torn, steps_to_delete(found, 1)) == (100, (200,), ())
    assert f"step-200 of {folder}" in torn_finding(found).message
    with pytest.raises(TitanError, match=r"D621.*load_step = 200"):
        step_to_load(found, 200)


def test_c32_a_manifest_of_no_bytes_commits_nothing_wherever_it_stands(folder: Path) -> None:
    save(folder, 200, None)
    places.put(folder / "step-200" / MANIFEST, b"")
    assert checkpoints_in(folder).unfinished == (200,)


def test_a_place_that_is_not_there_holds_none(folder: Path) -> None:
    found = checkpoints_in(folder)
    assert (found.committed, found.unfinished, places.exists(folder)) == ((), (), False)


def test_a_place_that_is_a_file_cannot_be_listed(folder: Path) -> None:
    places.make_folder(folder)
    places.put(folder / "file", b"x")
    with pytest.raises(TitanError, match="D622"):
        checkpoints_in(folder / "file")


@pytest.mark.parametrize(
    ("name", "data", "words"), [("__0_0.distcp", b"sh", "has 2 bytes, and 5 were written"), ("", b"", "is not there")]
)
def test_a_file_that_was_cut_short_or_has_gone_is_damage(folder: Path, name: str, data: bytes, words: str) -> None:
    save(folder, 1)
    save(folder, 2)
    shard = folder / "step-2" / "__0_0.distcp"
    if name:
        places.put(shard, data)
    else:
        places.unlink(shard)
    assert damage(folder / "step-2") == f"its file __0_0.distcp {words}"
    step, [warning] = whole_step_to_load(checkpoints_in(folder), -1)
    assert (step, warning.rule) == (1, "D630")


def test_a_checkpoint_that_is_deleted_has_gone(folder: Path) -> None:
    save(folder, 1)
    save(folder, 2)
    delete(folder / "step-1")
    assert places.names_in(folder) == ["step-2"]


def test_checkpoints_that_a_run_goes_back_behind_are_put_aside_whole(folder: Path) -> None:
    for step in (1, 2, 3):
        save(folder, step)
    assert put_aside(folder, after=1) == ("step-2.aside-1", "step-3.aside-1")
    assert checkpoints_in(folder).committed == (1,)
    assert aside_in(folder) == ("step-2.aside-1", "step-3.aside-1")
    assert is_committed(folder / "step-2.aside-1")
    assert damage(folder / "step-3.aside-1") == ""
    save(folder, 2)
    assert put_aside(folder, after=1) == ("step-2.aside-2",)


def test_a_folder_of_checkpoints_to_begin_from_may_be_a_url(folder: Path) -> None:
    save(folder, 1)
    save(folder, 2)
    assert initial_checkpoint(str(folder)) == (folder / "step-2", ())
    assert initial_checkpoint(str(folder / "step-1")) == (folder / "step-1", ())
    with pytest.raises(TitanError, match="D624"):
        initial_checkpoint(str(folder / "nothing"))


def test_pieces_of_a_file_are_read_where_they_stand(folder: Path) -> None:
    places.make_folder(folder)
    places.put(folder / "file", b"0123456789")
    assert places.read_pieces(folder / "file", [(1, 3), (8, 10)]) == [b"12", b"89"]
    assert places.read_all([folder / "file"]) == [b"0123456789"]
    [missing] = places.read_all([folder / "nothing"])
    assert isinstance(missing, FileNotFoundError)


# ---- runs --------------------------------------------------------------------------------------

SAVING: dict[str, Any] = {"training__steps": 6, "checkpoint__interval": 2, "checkpoint__keep_latest_k": 1}


@pytest.mark.world
def test_a_run_goes_on_from_a_url_as_if_it_had_not_ended(gloo: GlooPool, tmp_path: Path) -> None:
    url = f"local://{tmp_path}/store"
    values = SAVING | {"parallelism__data_parallel_shard_degree": 2, "cluster__gpus_per_node": 2, "training__steps": 3}
    straight = gloo.run(2, train, arguments=values, folder=str(tmp_path / "straight"))
    values |= {"checkpoint__folder": url}
    first = gloo.run(2, train, arguments=values, folder=str(tmp_path / "run"), ends_after=2)
    there = checkpoints_in(place(url, key=""))
    second = gloo.run(2, train, arguments=values, folder=str(tmp_path / "run"))
    assert (there.committed, checkpoints_in(place(url, key="")).committed) == ((2,), (3,))
    for whole, begun, ended in zip(straight, first, second, strict=True):
        assert begun["losses"] | ended["losses"] == whole["losses"]
        assert all(torch.equal(ended["held"][name], value) for name, value in whole["held"].items())


def test_a_run_whose_place_cannot_be_written_ends_before_its_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TitanError, match=r"D636.*cannot be written"):
        train(SAVING | {"checkpoint__folder": f"local://{tmp_path}/file/store"}, str(tmp_path))


def test_events_tell_the_url(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    train(SAVING | {"training__steps": 1, "checkpoint__folder": url}, str(tmp_path))
    told = [event for event in read_new(event_file(tmp_path, 0))[0] if event["kind"] == "checkpoint"]
    assert [event["path"] for event in told] == [f"{url}/step-1"] * 2
    assert [event["state"] for event in told] == ["begun", "committed"]
