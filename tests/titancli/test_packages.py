"""Packages that are missing, told before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import engine.extras
from engine.errors import EXIT_HARDWARE, EXIT_OK
from engine.sources import Flag, load
from titancli.launch import Options, launch
from titancli.packages import look_for_packages
from titancli.validate import validate

FLAGS = [Flag("cluster.gpu", "cpu", "--cluster.gpu"), Flag("job.name", "first", "--name")]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config that asks for one, on a machine that has none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine.extras, "find_spec", lambda _: None)
    path = tmp_path / "run.toml"
    path.write_text("[metrics]\nenable_tensorboard = true\n", "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("starts_here", "severity", "where"), [(True, "error", ""), (False, "warning", " where the run starts")]
)
def test_a_missing_package_is_told_with_its_line_and_the_way_out(
    starts_here: bool, severity: str, where: str, file: str
) -> None:
    loaded = load(file, environ={}, flags=FLAGS)
    (finding,) = look_for_packages(loaded, starts_here=starts_here)
    assert (finding.rule, finding.severity, finding.line) == ("H827", severity, 2)
    assert finding.message == "metrics.enable_tensorboard needs the package tensorboard, which is not installed here"
    way = f"python -m pip install 'titan-train[tensorboard]'{where}"
    assert finding.fix == f"{way}, or set metrics.enable_tensorboard to false"


def test_validate_warns_of_it_and_launch_starts_nothing(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate(file, None, FLAGS, stack="titan", dry_run=False, as_json=False) == EXIT_OK
    assert "warning[H827]: metrics.enable_tensorboard needs" in capsys.readouterr().err
    assert launch(file, "quickstart", FLAGS, Options()) == EXIT_HARDWARE
    assert "error[H827]: metrics.enable_tensorboard needs" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
