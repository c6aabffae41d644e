"""Which folder holds the output of a rank."""

from __future__ import annotations

from pathlib import Path

from titancli.rank_logs import rank_logs


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


def test_a_run_that_has_printed_nothing_has_no_logs(tmp_path: Path) -> None:
    assert rank_logs(tmp_path) == {}
