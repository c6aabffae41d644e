"""Which folder holds the output of a rank."""

from __future__ import annotations

from pathlib import Path

from titancli.rank_logs import launch_log, launch_logs, rank_logs, torchrun_logs


def made(run: Path, *folders: str) -> None:
    for folder in folders:
        (run / "logs" / folder).mkdir(parents=True)


def test_on_one_machine_a_local_rank_is_the_rank(tmp_path: Path) -> None:
    made(tmp_path, "x_1/attempt_0/0", "x_1/attempt_0/1")
    assert [logs.folder.name for logs in rank_logs(tmp_path).values()] == ["0", "1"]


def test_links_tell_ranks_apart_whose_local_ranks_are_the_same(tmp_path: Path) -> None:
    made(tmp_path, "x_1/attempt_0/0", "x_2/attempt_0/0", "ranks")
    for rank, node in ((0, "x_2"), (1, "x_1")):
        (tmp_path / "logs/ranks" / str(rank)).symlink_to(f"../{node}/attempt_0/0")
    found = {rank: logs.stdout.resolve().parts[-4] for rank, logs in rank_logs(tmp_path).items()}
    assert found == {0: "x_2", 1: "x_1"}


def test_nodes_with_folders_of_their_own_hold_ranks_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    made(tmp_path, *(f"node-{node}/x_{node}/attempt_0/{local}" for node in (0, 1, 10) for local in (0, 1)))
    found = {rank: logs.folder.parts[-4:] for rank, logs in rank_logs(tmp_path).items()}
    assert sorted(found) == [0, 1, 2, 3, 20, 21]
    assert found[3] == ("node-1", "x_1", "attempt_0", "1")


def test_one_node_of_several_on_its_own_disk_holds_its_own_ranks(tmp_path: Path) -> None:
    made(tmp_path, "node-1/x_1/attempt_0/0", "node-1/x_1/attempt_0/1")
    assert list(rank_logs(tmp_path)) == [2, 3]


def test_torchrun_of_every_node_has_its_log(tmp_path: Path) -> None:
    made(tmp_path, "node-10", "node-2")
    for log in (launched := [tmp_path / "logs" / node / "torchrun.log" for node in ("node-2", "node-10")]):
        log.touch()
    assert torchrun_logs(tmp_path) == launched


def test_launchers_without_a_terminal_have_theirs_the_folders_own_first(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for node in (10, 2, None):
        launch_log(tmp_path, node).touch()
    names = ["launch.log", "launch-node-2.log", "launch-node-10.log"]
    assert [log.name for log in launch_logs(tmp_path)] == names


def test_a_run_that_has_printed_nothing_has_no_logs(tmp_path: Path) -> None:
    assert rank_logs(tmp_path) == {}
