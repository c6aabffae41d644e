from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import TitanError
from engine.exchange.whole import begin_whole, give_up, make_whole


def begun(output: Path, *, force: bool = True, needed_bytes: int = 1) -> Path:
    return begin_whole(output, force=force, mark="config.json", needed_bytes=needed_bytes)


def test_a_folder_gets_its_name_when_it_is_whole_and_replaces_one_of_its_kind(tmp_path: Path) -> None:
    for content in ("one", "two"):
        (begun(tmp_path / "out") / "config.json").write_text(content)
        make_whole(tmp_path / "out")
        assert (tmp_path / "out" / "config.json").read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_another_kind_is_not_replaced_even_by_force(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    for output in (tmp_path / "home", tmp_path / "home" / "thesis.tex"):
        with pytest.raises(TitanError, match=r"D654.*is not replaced: it holds no config.json"):
            begun(output)
    with pytest.raises(TitanError, match=r"D654.*is there already"):
        begun(tmp_path / "home", force=False)
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TitanError, match=r"D654.*takes 1,000,000,000,000,000,000 bytes, and [\d,]+ are free there"):
        begun(tmp_path / "out", needed_bytes=10**18)
    assert list(tmp_path.iterdir()) == []


def test_what_was_given_up_or_killed_looks_like_no_model(tmp_path: Path) -> None:
    (begun(tmp_path / "out") / "model.safetensors").touch()
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
    assert list(begun(tmp_path / "out").iterdir()) == []
    give_up(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
