"""The file: its name and its place."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from engine.config import Config
from engine.errors import TitanError
from engine.hardware import GPUS, Cluster
from engine.keys import with_values
from titancli.init.target import check_place, free_name, name_for

EIGHT = Cluster(gpu=GPUS["h100-80"], nodes=1, gpus_per_node=8, network_gbit_per_s_per_gpu=None)


def test_a_name_says_model_gpus_and_any_other_goal_than_production() -> None:
    config = with_values(Config(), {"model.flavor": "8B"})
    assert name_for(config, EIGHT, "production") == "llama3-8b-8xh100-80.toml"
    assert name_for(config, EIGHT, "max-performance") == "llama3-8b-8xh100-80-max-performance.toml"


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    assert free_name(str(path)) == str(path)
    path.touch()
    (tmp_path / "run-2.toml").touch()
    assert free_name(str(path)) == str(tmp_path / "run-3.toml")


def test_a_full_disk_is_told_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 4096, 4096))
    with pytest.raises(TitanError, match="4 KiB are free there"):
        check_place(str(tmp_path / "run.toml"), force=False)


def test_a_place_for_a_name_that_is_still_to_be_made_is_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_place(None, force=False)
    assert list(tmp_path.iterdir()) == []
