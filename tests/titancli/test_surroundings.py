"""What a config names, looked for on this machine, in one report."""

from __future__ import annotations

from pathlib import Path

from engine.errors import EXIT_CONFIG
from engine.rules import Report, check
from engine.sources import Flag, Loaded, load
from titancli.surroundings import Here, look_around

KEYS = {"checkpoint.enable": "true", "checkpoint.interval": "100", "checkpoint.keep_latest_k": "3"}


def around(free_bytes: int, **more: str) -> tuple[Loaded, Report, Here]:
    """fsdp-8b that keeps 3 checkpoints, where so much is free; further keys with __ for the dot."""
    keys = KEYS | {key.replace("__", "."): value for key, value in more.items()}
    loaded = load(preset="fsdp-8b", flags=[Flag(key, value, f"--{key}") for key, value in keys.items()], environ={})
    return loaded, *look_around(loaded, check(loaded), free_bytes=lambda _: free_bytes)


def test_c36_a_config_on_a_disk_of_300_gb_is_sound_with_a_warning() -> None:
    _, report, here = around(300 * 10**9)
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("M520", "warning")]
    assert report.ok
    assert here.rows[-1][1].startswith("96.36 GB (89.75 GiB) each; 385.5 GB at their peak (3 kept + 1 being written)")
    assert here.to_json()["disk"]["needed_bytes"] == 4 * 96_363_134_976


def test_c36_a_disk_with_room_is_told_without_a_warning() -> None:
    _, report, here = around(400 * 10**9)
    assert (report.findings, here.rows[-1][0]) == ((), "checkpoints")


def test_a_config_without_a_plan_has_no_checkpoints_to_count() -> None:
    _, report, here = around(1, parallelism__tensor_parallel_degree="3")
    assert (report.exit_code, here.disk) == (EXIT_CONFIG, None)


def test_a_key_that_cannot_be_read_leaves_its_section_alone() -> None:
    _, _, here = around(1, checkpoint__interval='"often"')
    assert (here.start, here.disk) == (None, None)


def test_an_error_from_outside_the_rules_takes_the_plan_and_stands_in_order(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    _, report, _ = around(1, training__dataset="text", training__dataset_path=str(tmp_path / "x.txt"))
    assert [finding.rule for finding in report.findings] == ["D205", "M520"]
    assert (report.plan, report.exit_code) == (None, EXIT_CONFIG)
