"""What a run left to go on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import TitanError
from engine.settled import write_settled
from titancli.launch.kept import go_on, goes_on_after, saves


def write(run: Path, config: str, *committed: int, begun: int | None = None) -> Path:
    for step in committed:
        folder = run / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}", "utf-8")
    if begun is not None:
        (run / "checkpoints" / f"step-{begun}").mkdir(parents=True)
    (run / "config.toml").write_text(config, "utf-8")
    return run


def test_newest_step_is_one_that_was_committed(tmp_path: Path) -> None:
    assert goes_on_after(write(tmp_path, "[checkpoint]\nenable = true\n", 4, 12, begun=16)) == 12


def test_damaged_checkpoint_is_passed_over_for_the_newest_whole_one(tmp_path: Path) -> None:
    run = write(tmp_path, "[checkpoint]\nenable = true\n", 4, 12)
    (run / "checkpoints" / "step-12" / "manifest.json").write_text('{"files": {"gone": 8}}', "utf-8")
    assert goes_on_after(run) == 4


def test_a_step_that_was_asked_for_and_not_loaded_yet_is_the_one_to_go_on_from(tmp_path: Path) -> None:
    run = write(tmp_path, "[checkpoint]\nenable = true\nload_step = 4\n", 4, 12)
    assert goes_on_after(run) == 4
    write_settled(run, {"checkpoint.load_step": -1})
    assert goes_on_after(run) == 12


def test_checkpoints_are_looked_for_in_their_own_folder(tmp_path: Path) -> None:
    run = write(tmp_path, '[checkpoint]\nenable = true\nfolder = "kept"\n', 4)
    assert goes_on_after(run) is None
    (run / "checkpoints").rename(run / "kept")
    assert goes_on_after(run) == 4


def test_a_run_that_keeps_none_has_no_newest_step_whatever_lies_there(tmp_path: Path) -> None:
    assert goes_on_after(write(tmp_path, "", 4)) is None


def test_checkpoints_that_cannot_be_listed_are_not_taken_for_none(tmp_path: Path) -> None:
    run = write(tmp_path, "[checkpoint]\nenable = true\n")
    (run / "checkpoints").write_text("", "utf-8")
    with pytest.raises(TitanError, match="D622"):
        goes_on_after(run)


@pytest.mark.parametrize(
    ("config", "expected"),
    [("[checkpoint]\nenable = true\n", True), ("[checkpoint]\nenable = false\n", False), ("", False)],
)
def test_run_saves_where_its_config_says_so(tmp_path: Path, config: str, *, expected: bool) -> None:
    assert saves(write(tmp_path, config)) is expected


def test_command_that_goes_on_takes_the_runs_own_config(tmp_path: Path) -> None:
    assert go_on(tmp_path / "my run") == f"titan launch '{tmp_path}/my run/config.toml' --resume --name 'my run'"


def test_run_of_a_scheduler_goes_on_with_it(tmp_path: Path) -> None:
    run = write(tmp_path, '[launch]\nscheduler = "slurm"\n')
    assert go_on(run).endswith(" --scheduler slurm")


@pytest.mark.parametrize(
    ("scheduler", "ends"), [("local", "--node-rank K --rdzv-endpoint HOST:PORT"), ("slurm", "--scheduler slurm")]
)
def test_line_that_goes_on_leaves_each_node_its_number(tmp_path: Path, scheduler: str, ends: str) -> None:
    (tmp_path / "config.toml").write_text(f'[cluster]\nnodes = 2\n[launch]\nscheduler = "{scheduler}"\n')
    assert go_on(tmp_path).endswith(f" --name {tmp_path.name} {ends}")


def test_run_that_has_gone_back_to_a_step_goes_on_from_its_newest(tmp_path: Path) -> None:
    run = write(tmp_path, "[checkpoint]\nenable = true\nload_step = 4\n")
    write_settled(run, {"checkpoint.load_step": -1})
    assert go_on(run).endswith(" --checkpoint.load_step -1")
