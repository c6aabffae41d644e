"""The house itself: what stays light, what stays short, what stands where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("engine", "titancli", "presets") for path in (ROOT / folder).rglob("*.py"))


def test_importing_engine_and_what_plans_never_imports_torch() -> None:
    code = (
        "import sys, engine; from engine import check, load, plan; "
        "plan(load(preset='3d-405b').config); check(load(preset='4d-405b-long')); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_opens_with_what_it_knows(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not text.strip() or text.startswith('"""'), f"{path} has no module docstring"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_stays_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 450


def test_readme_opens_with_the_two_commands() -> None:
    head = (ROOT / "README.md").read_text("utf-8")[:2000]
    assert "python -m pip install -e . && titan launch --preset quickstart" in head
    assert "python -m pip install -e '.[test]' && pytest" in head
