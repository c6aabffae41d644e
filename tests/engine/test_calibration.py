"""Calibrations: their file, where it is looked for, and what a damaged one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.calibration import RATES, Calibration, CalibrationError, find, read, text, usual_path, write
from engine.errors import EXIT_CONFIG
from engine.hardware import Gpu

MEASURED = Calibration(
    gpu="h200",
    gpu_name="NVIDIA H200",
    host='a "quoted" host',
    date="2026-11-30T10:00:00+00:00",
    versions={"torch": "2.11.0+cu130", "driver": "580.1"},
    sustained={"bf16_tflops": 712.25, "hbm_tbyte_per_s": 4.2661},
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "h200.toml"
    write(MEASURED, path)
    return path


def test_what_is_written_is_read_again(file: Path) -> None:
    found = read(file)
    assert found.path == str(file)
    assert text(found) == text(MEASURED)
    assert (found.gpu, found.host, found.versions, found.sustained) == (
        MEASURED.gpu,
        MEASURED.host,
        MEASURED.versions,
        MEASURED.sustained,
    )


def test_nothing_is_left_beside_the_file(file: Path) -> None:
    write(MEASURED, file)
    assert [path.name for path in file.parent.iterdir()] == ["h200.toml"]


def test_every_rate_is_one_that_a_gpu_has() -> None:
    assert {field for field, _ in RATES.values()} <= set(Gpu.__dataclass_fields__)


def test_a_rate_comes_in_the_units_of_a_gpu() -> None:
    assert MEASURED.fields == {"sustained_bf16_flops_per_s": 712.25e12, "sustained_hbm_bytes_per_s": 4.2661e12}


def test_the_usual_place_is_below_the_users_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/there")
    assert usual_path("h200") == Path("/there/titan/calibration/h200.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    assert usual_path("cpu") == Path("~/.config/titan/calibration/cpu.toml").expanduser()


def test_auto_finds_nothing_where_nothing_was_measured() -> None:
    assert find("auto", "h200", host="here") is None


def test_auto_finds_nothing_where_no_path_can_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/" + "x" * 5000)
    assert find("auto", "h200", host="here") is None


def test_a_path_that_is_named_is_used(file: Path) -> None:
    found = find(str(file), "h200", host="here")
    assert found is not None
    assert found.path == str(file)


def trouble(path: Path, *, setting: str | None = None, gpu: str = "h200") -> str:
    with pytest.raises(CalibrationError) as told:
        find(setting or str(path), gpu, host="here")
    assert told.value.exit_code == EXIT_CONFIG
    (finding,) = told.value.findings
    assert (finding.rule, finding.key) == ("C801", "cluster.calibration")
    return finding.message.replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("712.25", "fast", "FILE is damaged: Invalid value (at line 13, column 15)"),
        ("712.25", "-3.0", "FILE is damaged: bf16_tflops = -3.0 is no rate from 1e-06 to 1,000,000"),
        ("712.25", "inf", "FILE is damaged: bf16_tflops = inf is no rate from 1e-06 to 1,000,000"),
        ("712.25", "1e-320", "FILE is damaged: bf16_tflops = 1e-320 is no rate from 1e-06 to 1,000,000"),
        ("712.25", "1e300", "FILE is damaged: bf16_tflops = 1e+300 is no rate from 1e-06 to 1,000,000"),
        ("712.25", "true", "FILE is damaged: bf16_tflops = True is no rate from 1e-06 to 1,000,000"),
        ("bf16_tflops", "bf61_tflops", f"FILE is damaged: bf61_tflops is no rate; known are {', '.join(RATES)}"),
        ("[sustained]", "[other]", "FILE is damaged: it has no table [sustained]"),
        ("form = 1", "form = 2", "FILE has form = 2, and this titan reads form 1"),
        ("form = 1", "", "FILE has form = None, and this titan reads form 1"),
        ("date = ", "day = ", "FILE is damaged: it does not say date"),
        ('gpu = "h200"', 'gpu = "h100-80"', "FILE was measured on h100-80, and the plan is for h200"),
        (text(MEASURED), "", "FILE has form = None, and this titan reads form 1"),
    ],
)
def test_a_damaged_calibration_says_what_is_wrong(file: Path, old: str, new: str, message: str) -> None:
    file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")
    assert trouble(file) == message


def test_a_file_that_is_no_text_is_told(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    assert trouble(file) == "FILE is not text"


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert trouble(tmp_path / "none.toml") == "cannot read FILE: no such file or directory"
    assert trouble(tmp_path) == "cannot read FILE: is a directory"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("~nobody-of-this-name/x.toml", "cannot read ~nobody-of-this-name/x.toml: no such file or directory"),
        ("/dev/zero", "/dev/zero is larger than any calibration"),
    ],
)
def test_a_path_that_leads_to_no_file_is_told(setting: str, message: str) -> None:
    with pytest.raises(CalibrationError) as raised:
        find(setting, "h200", host="here")
    assert raised.value.findings[0].message == message


def test_tables_without_end_are_damage(file: Path) -> None:
    file.write_text("form = " + "[" * 20_000, "utf-8")
    assert trouble(file).startswith("FILE is damaged: ")


@pytest.mark.parametrize("setting", ["", "  "])
def test_an_empty_name_is_no_file(setting: str) -> None:
    with pytest.raises(CalibrationError, match="no file is named"):
        find(setting, "h200", host="here")


def test_a_damaged_file_at_the_usual_place_is_not_passed_over() -> None:
    path = usual_path("h200")
    path.parent.mkdir(parents=True)
    path.write_text("form = ", "utf-8")
    assert "is damaged" in trouble(path, setting="auto")


def test_a_processor_of_another_host_is_refused_where_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cpu.toml"
    path.write_text(text(MEASURED).replace('gpu = "h200"', 'gpu = "cpu"'), "utf-8")
    assert trouble(path, gpu="cpu") == f"FILE was measured on the processor of {MEASURED.host}, and this is here"
