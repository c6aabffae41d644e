"""Every layout that the GPUs of this machine can hold trains as one GPU does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def rows(folder: Path, processes: int) -> list[dict[str, object]]:
    """What layouts.py prints on so many GPUs."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    paths = os.pathsep.join([str(HERE.parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        [*command, str(HERE / "layouts.py"), str(folder)],
        check=False,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.device
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_layouts_on_gpus_train_as_one_gpu_does(tmp_path: Path) -> None:
    rows(tmp_path, 1)
    found = [row for count in (2, 4, 8) if count <= torch.cuda.device_count() for row in rows(tmp_path, count)]
    assert found
    for row in found:
        assert "error" not in row, row
        assert row["before"] == 0.0, row
        assert row["share"] == 1.0, row
        # Kernels on GPUs sum in another order for every size that they are given.
        assert max(row["loss"], row["norm"]) <= 1e-4, row  # type: ignore[type-var]
