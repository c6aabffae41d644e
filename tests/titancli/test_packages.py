"""Packages that are missing, told before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import engine.extras
from engine.sources import Flag, Loaded, load
from titancli.packages import look_for_packages


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A config that asks for one, on a machine that has none."""
    monkeypatch.setattr(engine.extras, "find_spec", lambda _: None)
    path = tmp_path / "run.toml"
    path.write_text("[metrics]\nenable_tensorboard = true\n", "utf-8")
    return load(str(path), environ={}, flags=[Flag("cluster.gpu", "cpu", "--cluster.gpu")])


@pytest.mark.parametrize(
    ("starts_here", "severity", "where"), [(True, "error", ""), (False, "warning", " where the run starts")]
)
def test_a_missing_package_is_told_with_its_line_and_the_way_out(
    starts_here: bool, severity: str, where: str, loaded: Loaded
) -> None:
    (finding,) = look_for_packages(loaded, starts_here=starts_here)
    assert (finding.rule, finding.severity, finding.line) == ("H827", severity, 2)
    assert finding.message == "metrics.enable_tensorboard needs the package tensorboard, which is not installed here"
    way = f"python -m pip install 'titan-train[tensorboard]'{where}"
    assert finding.fix == f"{way}, or set metrics.enable_tensorboard to false"
