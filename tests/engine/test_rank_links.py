"""Logs by rank, where several nodes write into one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.rank_links import link_logs


@pytest.mark.parametrize(("nodes", "links"), [("2", ["5"]), ("1", [])])
def test_a_rank_of_several_nodes_is_found_by_its_number(
    nodes: str, links: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "logs" / "run_x" / "attempt_0" / "1"
    own.mkdir(parents=True)
    (own / "stderr.log").write_text("boom")
    for name, value in (
        ("TORCHELASTIC_ERROR_FILE", str(own / "error.json")),
        ("GROUP_WORLD_SIZE", nodes),
        ("RANK", "5"),
    ):
        monkeypatch.setenv(name, value)
    for _ in range(2):
        link_logs(tmp_path / "logs")
    found = sorted((tmp_path / "logs").glob("ranks/*/stderr.log"))
    assert [path.parent.name for path in found] == links
    assert all(path.read_text() == "boom" for path in found)
