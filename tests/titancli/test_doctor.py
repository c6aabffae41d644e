"""`titan doctor` as a person runs it."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeGpu, FakeNvml, slices

from engine.calibration import read
from engine.cards import driver
from engine.errors import TitanError
from engine.machine import limits, this_machine
from titancli import doctor
from titancli.fitness import Check, checks


def test_doctor_tells_what_this_machine_is(titan: Callable[..., Any]) -> None:
    ran = titan("doctor", "--json")
    told = json.loads(ran.out)
    assert ran.code == (0 if told["ok"] else 3)
    assert told["ok"] == all(check["state"] != "wrong" for check in told["checks"])
    assert {"processor", "torch", "disk"} <= {check["name"] for check in told["checks"]}
    assert told["calibration"] is None


def test_a_machine_that_cannot_do_the_work_is_exit_3_and_told_why(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torn apart')\n")
    ran = titan("doctor", PYTHONPATH=str(tmp_path))
    assert ran.code == 3
    assert "torch cannot be used: ImportError: torn apart" in ran.out
    assert ran.err == "\nthis machine cannot do the work\n"


def test_measured_rates_are_kept_and_planned_with(titan: Callable[..., Any], tmp_path: Path) -> None:
    ran = titan("doctor", "--measure", "--json", "--output", "rates/here.toml", CUDA_VISIBLE_DEVICES="")
    assert (ran.code, ran.err) == (0, "")
    kept = read(tmp_path / "rates" / "here.toml")
    assert json.loads(ran.out)["calibration"]["sustained"] == kept.sustained
    planned = titan("validate", "--preset", "quickstart", "--cluster.calibration=rates/here.toml", "--json")
    assert planned.code == 0
    plan = json.loads(planned.out)["plan"]
    assert plan["calibration"] == "rates/here.toml"
    assert plan["tokens_per_s_per_gpu"] > 0


def test_without_measured_rates_a_cpu_has_no_predicted_speed(titan: Callable[..., Any]) -> None:
    plan = json.loads(titan("validate", "--preset", "quickstart", "--json").out)["plan"]
    assert (plan["calibration"], plan["tokens_per_s_per_gpu"]) == (None, None)


def test_a_damaged_calibration_is_one_finding(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text("form = 1\n[sustained]\nbf16_tflops = 'fast'\n")
    ran = titan("validate", "--preset", "quickstart", "--cluster.calibration=here.toml")
    assert ran.code == 2
    assert "error[C801]: here.toml is damaged: it does not say gpu, gpu_name, host, date" in ran.err
    assert "fix: measure anew with titan doctor --measure" in ran.err
    assert "Traceback" not in ran.err


def test_a_file_for_rates_that_are_not_measured_is_refused(titan: Callable[..., Any]) -> None:
    ran = titan("doctor", "--output", "here.toml")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[U114]: --output names the file of a calibration, and nothing is measured")


def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(titan: Callable[..., Any]) -> None:
    ran = titan("doctor", "--measure", "--output", "/proc/here.toml")
    assert ran.code == 2
    assert "error[U115]: cannot write /proc/here.toml" in ran.err
    assert "measuring" not in ran.out


def test_a_full_disk_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        with pytest.raises(TitanError) as told:
            doctor._check_place(tmp_path / "here.toml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
    assert told.value.findings[0].rule == "U115"
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_calibration_at_the_usual_place_is_told(titan: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "titan" / "calibration" / "cpu.toml"
    file.parent.mkdir(parents=True)
    file.write_text("form = ")
    ran = titan("doctor", CUDA_VISIBLE_DEVICES="", XDG_CONFIG_HOME=str(tmp_path))
    told = " ".join(ran.out.split())
    assert f"? calibration {file} is damaged" in told
    assert f"fix: measure anew: titan doctor --measure, or remove {file}" in told


def test_checks_fit_60_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name, value in (("COLUMNS", "60"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    long = Check(name="shared memory", state="doubtful", found="64.0 MiB: " + "too little " * 9, fix="make room " * 9)
    doctor._say_checks([long], fit=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert all(line.startswith(" " * 19) for line in lines[1:-2])


def test_a_gpu_with_its_uuid_fits_60_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name, value in (("COLUMNS", "60"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
    gpus = driver(
        FakeNvml(FakeGpu(uuid=uuid), slices(uuid.removeprefix("GPU-"), "1g.18gb")), {"CUDA_VISIBLE_DEVICES": "0,5"}
    )
    here, room = this_machine(), limits(Path())
    doctor._say_checks(list(checks(here, gpus, room, None, "no torch")), fit=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.strip() == uuid for line in lines)
