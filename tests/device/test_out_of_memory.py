"""A real lack of memory on a real GPU: what `titan launch` says of it, and that what it offers fits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.events import event_file, read_new

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

TITAN = (sys.executable, "-P", "-c", "import sys; sys.argv[0] = 'titan'; from titancli.start import main; main()")
CONFIG = """\
[cluster]
gpu = "auto"
gpus_per_node = 1

[model]
name = "llama3"
flavor = "1B"
"""
# By plan the first step takes 51 GiB and the second 60: the part of a card that the process is let have is less.
PART_GIB = 40
WORDS = (
    *("launch", "run.toml", "--training.seq_len", "2048", "--training.local_batch_size", "8", "--training.steps", "3"),
    *("--lr_scheduler.warmup_steps", "1", "--metrics.log_freq", "1", "--name"),
)


def launch(folder: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """One launch whose process may take PART_GIB of the card."""
    (folder / "run.toml").write_text(CONFIG, "utf-8")
    part = PART_GIB * 2**30 / torch.cuda.get_device_properties(0).total_memory
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TITAN_", "PYTORCH_"))}
    return subprocess.run(
        [*TITAN, *WORDS, name, *words],
        cwd=folder,
        env=kept | {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:True,per_process_memory_fraction:{part:.4f}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_c41_out_of_memory_is_told_and_the_first_change_that_is_offered_fits(tmp_path: Path) -> None:
    failed = launch(tmp_path, "full")
    print(failed.stdout, failed.stderr)
    assert failed.returncode == 1
    assert "error[R202]: rank 0 failed first: OutOfMemoryError: CUDA out of memory" in failed.stderr
    for label in ("moment     step ", "held       ", "planned    "):
        assert f"\n  {label}" in failed.stderr
    ended = read_new(event_file(tmp_path / "runs" / "full", 0))[0][-1]
    seen = ended["memory"]
    assert ended["first_failure"]["type"] == "OutOfMemoryError"
    assert seen["asked_bytes"] + seen["reserved_bytes"] > 0.9 * PART_GIB * 2**30
    offered = re.search(r"fix: set (.+?)(?: \(|, or |;)", failed.stderr)
    assert offered is not None
    values = [edit.split(" to ") for edit in offered[1].split(" and ")]
    done = launch(tmp_path, "fits", *(word for key, value in values for word in (f"--{key}", value)))
    print(done.stdout, done.stderr)
    assert done.returncode == 0
