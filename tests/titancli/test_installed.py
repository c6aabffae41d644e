"""What is installed, told without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from titancli.installed import _built_for, installed


def test_versions_are_those_that_torch_says_of_itself() -> None:
    about, trouble = installed()
    assert about is not None
    assert (about["torch"], about["cuda"], about["hip"], trouble) == (
        torch.__version__,
        torch.version.cuda,
        torch.version.hip,
        "",
    )


def test_torch_is_not_imported_for_it() -> None:
    asked = "import sys; from titancli.installed import installed; installed(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", {"cuda": "13.0", "hip": None}),
        ("cuda = '12.8'\n", {"cuda": "12.8", "hip": None}),
        ("hip: Optional[str] = '6.4.1'\ncuda: Optional[str] = None\n", {"cuda": None, "hip": "6.4.1"}),
    ],
)
def test_what_torch_is_built_for_is_read_from_its_own_file(
    text: str, built: dict[str, str | None], tmp_path: Path
) -> None:
    file = tmp_path / "version.py"
    file.write_text(text)
    assert _built_for(file) == built
