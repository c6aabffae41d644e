"""`titan checkpoint ls`: what stands in a folder of checkpoints, and what becomes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.manifest import manifest_of
from engine.errors import TitanError
from engine.planner.plan import plan
from engine.sources import load
from titancli.checkpoint.found import find
from titancli.checkpoint.ls import Row, ls, rows_of

NOW_S = 1_800_000_000.0


def save(folder: Path, name: str, *, whole: bool = True, age_s: float = 60.0) -> None:
    """A checkpoint of quickstart."""
    config = load(preset="quickstart", flags=[], environ={}).config
    step = int(name.partition(".")[0].removeprefix("step-"))
    manifest = manifest_of(config, plan(config), step=step, samples=16 * step, updates=step, data={}, versions={})
    (folder / name).mkdir(parents=True)
    (folder / name / "__0_0.distcp").write_bytes(b"shard")
    written = manifest.with_files({"__0_0.distcp": 5}, now_s=NOW_S - age_s).to_json()
    (folder / name / "manifest.json").write_text(json.dumps(written) if whole else "", "utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that keeps two checkpoints and has some of each kind."""
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (run / "config.toml").write_text("[checkpoint]\nenable = true\nkeep_latest_k = 2\n")
    for name in ("step-10", "step-20", "step-20.aside-1", "step-30"):
        save(run / "checkpoints", name)
    save(run / "checkpoints", "step-40", whole=False)
    (run / "checkpoints" / "step-30" / "__0_0.distcp").unlink()
    return run


def rows(name: str, dump_folder: str = "runs") -> dict[str, Row]:
    return {row.name: row for row in rows_of(find(name, dump_folder), now_s=NOW_S)}


def test_each_has_its_state(run: Path) -> None:
    assert {name: row.state for name, row in rows(str(run)).items()} == {
        "step-10": "committed",
        "step-20": "committed",
        "step-20.aside-1": "put aside",
        "step-30": "damaged",
        "step-40": "unfinished",
    }


def test_c32_the_newest_whole_one_is_what_a_resume_takes(run: Path) -> None:
    assert [name for name, row in rows(str(run)).items() if row.takes] == ["step-20"]
    assert rows(str(run))["step-30"].harm == "its file __0_0.distcp is not there"


def test_a_step_that_the_config_asks_for_is_taken(run: Path) -> None:
    with (run / "config.toml").open("a") as file:
        file.write("load_step = 10\n")
    assert [name for name, row in rows(str(run)).items() if row.takes] == ["step-10"]


def test_what_the_next_save_deletes_is_what_it_deletes(run: Path) -> None:
    found = find(str(run), "runs")
    assert found.prunes == (10, 40)
    assert find(str(run / "checkpoints"), "runs") == found


def test_a_row_says_what_its_manifest_says(run: Path) -> None:
    row = rows(str(run))["step-20"]
    assert (row.age_s, row.bytes, row.layout, row.world_size) == (60.0, 5, "FSDP 2", 2)
    seq_len = load(preset="quickstart", flags=[], environ={}).config.training.seq_len
    assert (row.samples, row.tokens, row.schema) == (320, 320 * seq_len, 2)


def test_the_newest_run_is_meant_without_a_name(run: Path) -> None:
    assert find(None, str(run.parent)).run == run
    assert find("first", str(run.parent)).run == run


def test_a_folder_without_a_run_is_listed_too(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints").rename(tmp_path / "kept")
    found = find(str(tmp_path / "kept"), "runs")
    assert (found.run, found.keep_latest_k, found.takes, found.prunes) == (None, None, 20, ())
    assert find(str(tmp_path / "kept" / "step-10"), "runs").only == "step-10"


def test_a_url_is_listed_as_a_folder(run: Path) -> None:
    url = rows(f"local://{run}/checkpoints")
    assert {name: row.state for name, row in url.items()} == {
        name: row.state for name, row in rows(str(run / "checkpoints")).items()
    }


@pytest.mark.parametrize("name", ["nothing", "memory://nothing/here"])
def test_a_run_that_is_not_there_is_said(name: str, tmp_path: Path) -> None:
    with pytest.raises(TitanError, match="U110"):
        find(name, str(tmp_path))


def test_a_run_without_checkpoints_is_no_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints").rename(run / "away")
    assert ls(str(run), dump_folder="runs", as_json=False) == 0
    assert capsys.readouterr().out.split()[-2:] == ["no", "checkpoint"]


def test_imported_weights_have_no_layout(run: Path) -> None:
    file = run / "checkpoints" / "step-10" / "manifest.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps(written | {"layout": {"world_size": 1, "mesh": {}}, "data": {}}))
    row = rows(str(run))["step-10"]
    assert (row.layout, row.tokens) == (None, None)


def test_json_is_one_object(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ls(str(run), dump_folder="runs", as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["keep_latest_k"], told["resumes_after"], told["prunes"], told["is_running"]) == (
        2,
        20,
        [10, 40],
        False,
    )
    assert [row["step"] for row in told["checkpoints"]] == [10, 20, 20, 30, 40]


def test_people_see_a_table_and_what_is_wrong(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    monkeypatch.chdir(run.parent.parent)
    ls("first", dump_folder="runs", as_json=False)
    head, names, *lines = capsys.readouterr().out.splitlines()
    assert head == ("runs/first/checkpoints: 2 committed, 1 put aside, 1 damaged, 1 unfinished; goes on after step 20")
    assert names.split() == ["name", "state", "age", "bytes", "layout", "samples", "tokens"]
    assert lines[0].split()[:8] == ["step-10", "committed", "1", "min", "00", "s", "5", "B"]
    assert [
        line.endswith(words) for line, words in zip(lines, ("next save deletes it", "resume takes it"), strict=False)
    ]
    assert lines[-1] == "  step-30 is damaged: its file __0_0.distcp is not there"
    assert max(map(len, lines)) <= 100


def test_listing_imports_no_torch_and_no_fsspec(run: Path) -> None:
    code = (
        "import sys; from titancli.checkpoint.ls import ls; ls(sys.argv[1], dump_folder='runs', as_json=False);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'fsspec', 'upath')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0


def test_the_command_ends_with_2_where_there_is_no_run(titan: Callable[..., Any]) -> None:
    ran = titan("checkpoint", "ls", "nothing")
    assert (ran.code, ran.out, ran.err.startswith("error[U110]: there is no run nothing")) == (2, "", True)
