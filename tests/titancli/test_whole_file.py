"""Files that are in place whole or not at all."""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import TitanError
from titancli.whole_file import Written, check_target, write_file


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow."""
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))


def refused(path: str | Path, *, force: bool = False) -> tuple[str, str]:
    with pytest.raises(TitanError) as error:
        write_file(str(path), "new", force=force)
    assert error.value.exit_code == 2
    finding = error.value.findings[0]
    assert finding.fix
    return finding.rule, finding.message


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    usual, file = tmp_path / "usual", tmp_path / "run.toml"
    usual.write_text("")
    assert write_file(str(file), "ä\n", force=False) == Written(path=str(file))
    assert file.read_text("utf-8") == "ä\n"
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_what_is_there_stays_without_force(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("old")
    assert refused(file) == ("U124", f"{file} is there already")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("run.toml", "old")]


def test_force_keeps_each_text_that_was_there(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("first")
    file.chmod(0o666)
    assert write_file(str(file), "second", force=True).kept == f"{file}.old"
    assert write_file(str(file), "third", force=True).kept == f"{file}.old.2"
    assert write_file(str(file), "third", force=True).kept is None
    texts = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert texts == {"run.toml": "third", "run.toml.old": "first", "run.toml.old.2": "second"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o666


@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path, force: bool) -> None:
    file = tmp_path / "run.toml"
    if force:
        file.write_text("old")
    with full_disk():
        assert refused(file, force=force) == ("U125", f"cannot write {file}: file too large")
    assert [each.read_text() for each in tmp_path.iterdir()] == (["old"] if force else [])


@pytest.mark.parametrize("name", ["", " ", "-"])
def test_a_path_without_a_name_is_refused(name: str) -> None:
    assert refused(name)[0] == "U125"


def test_a_folder_is_refused_and_a_file_in_it_offered(tmp_path: Path) -> None:
    assert refused(tmp_path, force=True) == ("U125", f"cannot write {tmp_path}: that is a folder")
    assert refused(f"{tmp_path}/new/") == ("U125", f"cannot write {tmp_path}/new/: that is a folder")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "none" / "run.toml"
    assert refused(file) == ("U125", f"cannot write {file}: there is no folder {tmp_path}/none")


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "file" / "run.toml"
    assert refused(file) == ("U125", f"cannot write {file}: {tmp_path}/file is no folder")


def test_a_folder_that_may_not_be_written_to_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so it is the answer of the system that is changed.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert refused(tmp_path / "run.toml") == ("U125", f"cannot write {tmp_path}/run.toml: permission denied")


def test_a_name_too_long_is_told(tmp_path: Path) -> None:
    assert refused(tmp_path / ("x" * 300))[0] == "U125"
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    there, link = tmp_path / "there.toml", tmp_path / "run.toml"
    there.write_text("old")
    link.symlink_to(there)
    assert refused(link)[0] == "U124"
    assert write_file(str(link), "new", force=True) == Written(path=str(link), kept=f"{there}.old")
    assert (link.is_symlink(), there.read_text()) == (True, "new")


def test_a_link_to_nothing_is_refused_and_filled_with_force(tmp_path: Path) -> None:
    there, link = tmp_path / "there.toml", tmp_path / "run.toml"
    link.symlink_to(there)
    assert refused(link) == ("U124", f"{link} is a link to {there}, which is not there")
    assert write_file(str(link), "new", force=True).kept is None
    assert there.read_text() == "new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert write_file(str(pipe), "text", force=False).kept is None
    assert os.read(reader, 10) == b"text"
    os.close(reader)


def test_without_links_in_the_file_system_it_is_whole_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: str) -> None:
        raise OSError(95, "operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    file = tmp_path / "run.toml"
    assert write_file(str(file), "first", force=False).kept is None
    assert refused(file)[0] == "U124"
    assert write_file(str(file), "second", force=True).kept == f"{file}.old"
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        "run.toml": "second",
        "run.toml.old": "first",
    }


def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.toml"
    file.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        write_file(str(file), "new", force=True)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("run.toml", "old")]


def test_the_check_alone_writes_nothing(tmp_path: Path) -> None:
    check_target(str(tmp_path / "run.toml"), force=False)
    assert list(tmp_path.iterdir()) == []
