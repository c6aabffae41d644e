"""What a change costs: `titan validate` beside the config without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TitanError
from engine.planner.stack import TITAN
from engine.rules import check
from engine.sources import Flag, load
from titancli.against import Against, other, say_against, unchanged

BATCH = Flag("training.local_batch_size", "1", "--training.local_batch_size")
SOUND = '[model]\nflavor = "8B"\n[cluster]\ngpu = "h200"\n[training]\nlocal_batch_size = 1\n'


def beside(path: str | None, preset: str | None, *flags: Flag) -> Against | None:
    loaded = load(path, preset=preset, flags=flags)
    return unchanged(path, preset, loaded, check(loaded), stack=TITAN)


def said(capsys: pytest.CaptureFixture[str], against: Against | None, *flags: Flag, preset: str = "fsdp-8b") -> str:
    plan = check(load(preset=preset, flags=flags)).plan
    assert plan is not None
    assert against is not None
    say_against(plan, against)
    return capsys.readouterr().out


def test_each_figure_is_told_before_and_after_with_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    against = beside(None, "fsdp-8b", BATCH)
    lines = said(capsys, against, BATCH).splitlines()
    assert lines[1] == "against fsdp-8b without the flags"
    labels = [line[2:19].strip() for line in lines[2:]]
    assert labels == ["tokens a step", "tokens/s/GPU", "step time", "bubble", "exposed messages", "memory"]
    # Half of the sequences are half of the tokens.
    assert lines[2].endswith(" 131,072 -> 65,536 (-50.0 %)")
    before, after = (check(load(preset="fsdp-8b", flags=flags)).plan for flags in ([], [BATCH]))
    assert before is not None
    assert after is not None
    rates = before.tokens_per_s_per_gpu or 0.0, after.tokens_per_s_per_gpu or 0.0
    assert f"{rates[0]:,.0f} -> {rates[1]:,.0f} ({100 * (rates[1] / rates[0] - 1):+.1f} %)" in lines[3]
    assert "none, the same" in lines[5]


def test_where_nothing_is_changed_nothing_is_compared() -> None:
    steps = Flag("training.steps", "999", "--training.steps")
    assert beside(None, "fsdp-8b") is None
    assert beside(None, "fsdp-8b", steps) is None
    assert beside(None, None, Flag("model.flavor", "8B", "--model.flavor"), Flag("cluster.gpu", "h200", "")) is None


def test_the_environment_is_a_change_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TITAN_TRAINING__LOCAL_BATCH_SIZE", "1")
    assert "against fsdp-8b without the environment" in said(capsys, beside(None, "fsdp-8b"))


def test_a_file_that_is_wrong_alone_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text(SOUND + "[parallelism]\ntensor_parallel_degree = 3\n")
    flag = Flag("parallelism.tensor_parallel_degree", "1", "--parallelism.tensor_parallel_degree")
    against = beside(str(file), None, flag)
    assert against is not None
    assert against.to_json() is None
    told = " ".join(said(capsys, against).split())
    assert f"{file} alone is wrong: P101: tensor_parallel_degree = 3 does not divide the 8 KV heads" in told
    assert "->" not in told


def test_a_file_that_does_not_fit_alone_says_so_and_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, other("3d-405b", stack=TITAN))
    assert "alone" not in told
    flag = Flag("training.local_batch_size", "8", "--training.local_batch_size")
    full = Against(name="full", without="", report=check(load(preset="fsdp-8b", flags=[flag])))
    told = said(capsys, full)
    assert "full alone does not fit: 219 GiB of 95.0 GiB" in told
    assert "tokens/s/GPU" in told


def test_processors_without_a_measured_speed_are_compared_by_memory(capsys: pytest.CaptureFixture[str]) -> None:
    off = Flag("cluster.calibration", "none", "--cluster.calibration")
    told = said(capsys, beside(None, "quickstart", BATCH, off), BATCH, off, preset="quickstart")
    assert "speed            n/a (" in told
    assert "MiB -> " in told


def test_another_config_is_a_path_or_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text(SOUND)
    assert other(str(file), stack=TITAN).report.plan is not None
    assert other("fsdp-8b", stack=TITAN).report.plan is not None
    with pytest.raises(TitanError, match="U127"):
        other("nope", stack=TITAN)


def test_validate_ends_its_plan_with_it(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(SOUND)
    ran = titan("validate", "run.toml", "--training.seq_len", "4096")
    assert ran.code == 0
    assert ran.out.index("\nsettings") < ran.out.index("\nagainst run.toml without the flags\n")
    told = json.loads(titan("validate", "run.toml", "--training.seq_len", "4096", "--json").out)
    assert told["against"]["config"] == "run.toml"
    assert (told["against"]["plan"]["tokens_per_step"], told["plan"]["tokens_per_step"]) == (8 * 2048, 8 * 4096)
    assert json.loads(titan("validate", "run.toml", "--json").out)["against"] is None
    compared = json.loads(titan("validate", "run.toml", "--against", "fsdp-8b", "--json").out)["against"]
    assert compared["config"] == "fsdp-8b"
