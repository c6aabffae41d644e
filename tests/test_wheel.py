"""The wheel holds everything: commands and presets work from another folder, without the source tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, as pip lays it into site-packages."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = wheels.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    return site


def _titan(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line of the wheel in `folder`: its path comes first, and the start proves that it won."""
    start = (
        f"import sys; site = {str(site)!r}; sys.path.insert(0, site); import engine; "
        "assert engine.__file__.startswith(site); from titancli.dispatch import main; main()"
    )
    command = [sys.executable, "-P", "-c", start, *words]
    return subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=60)


def test_wheel_holds_every_preset(installed: Path, tmp_path: Path) -> None:
    shipped = {path.stem for path in (ROOT / "presets").glob("*.toml")}
    listed = json.loads(_titan(installed, tmp_path, "presets", "--json").stdout)
    assert {row["name"] for row in listed} == shipped


def test_wheel_validates_a_preset_in_another_folder(installed: Path, tmp_path: Path) -> None:
    report = json.loads(_titan(installed, tmp_path, "validate", "--preset", "3d-405b", "--json").stdout)
    assert report["plan"]["parameters"] == 405_853_388_800


def test_wheel_leaves_tests_out(installed: Path) -> None:
    assert not (installed / "tests").exists()


def test_wheel_leaves_pages_and_pictures_out(installed: Path) -> None:
    assert (installed / "titancli" / "pages" / "commands.py").is_file()
    assert not [
        path for path in installed.rglob("*") if path.suffix in (".md", ".svg", ".png") and "titancli" in path.parts
    ]
