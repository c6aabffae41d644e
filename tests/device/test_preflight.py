"""A preflight on GPUs, and which GPU each rank gets under CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cards import driver
from engine.events import event_file, read_new

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("default"),
]

CONFIG = Path(__file__).with_name("preflight.toml")
SEEN = """
import json, torch
from engine.cards import driver
ours = [card.uuid for card in driver().cards]
theirs = ["GPU-" + str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
print(json.dumps([ours, theirs]))
"""
ALL = [card.uuid for card in driver(environ={}).cards] if torch.cuda.is_available() else []


def titan(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "titancli", "launch", str(CONFIG), *words]
    return subprocess.run(
        command, cwd=folder, env=os.environ | environ, capture_output=True, text=True, timeout=240, check=False
    )


def settings() -> list[str]:
    """Ways to name GPUs, each of which CUDA and titan must read alike."""
    ways = ["0", "-1", "", ALL[0], ALL[0][:12], "0,0", "0,99"]
    return ways if len(ALL) == 1 else [*ways, "1", "1,0", f"{ALL[1]},{ALL[0]}", "1,-1,0", f"{ALL[1]},0"]


@pytest.mark.parametrize("visible", settings() if ALL else [])
def test_titan_reads_cuda_visible_devices_as_cuda_does(visible: str) -> None:
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    done = subprocess.run([sys.executable, "-c", SEEN], env=environ, capture_output=True, text=True, check=True)
    ours, theirs = json.loads(done.stdout)
    assert ours == theirs


def test_idle_gpus_are_free() -> None:
    for card in driver().cards:
        assert (card.trouble, card.doubts) == (None, ())
        assert card.memory_bytes > card.free_bytes > 0


def started(run: Path) -> list[dict[str, Any]]:
    """What each rank said of itself."""
    found: list[dict[str, Any]] = []
    for rank in range(len(list((run / "events").iterdir()))):
        events, _ = read_new(event_file(run, rank))
        found += [event for event in events if event["kind"] == "run_started"]
    return found


@pytest.mark.parametrize("count", range(1, min(2, len(ALL)) + 1))
def test_sound_gpus_pass_and_train(count: int, tmp_path: Path) -> None:
    done = titan(tmp_path, "--name", "x", "--preflight", "--cluster.gpus_per_node", str(count))
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "x"
    told = json.loads((run / "preflight.json").read_text())
    assert told["ok"]
    assert told["findings"] == []
    assert told["seconds"] < 60
    assert set(told["rates"]) == {"bf16_tflops", "memory_tbyte_per_s", "host_to_device_gbyte_per_s"}
    assert bool(told["links"]) == (count > 1)
    rows = json.loads((run / "ranks.json").read_text())
    uuids = [row["uuid"] for row in rows]
    assert uuids == [each["gpu"]["uuid"] for each in started(run)] == [rank["gpu"]["uuid"] for rank in told["ranks"]]
    assert "warning[H820]" not in done.stdout + done.stderr


@pytest.mark.skipif(len(ALL) < 2, reason="needs two GPUs")
def test_the_second_gpu_alone_is_the_only_one_that_a_run_sees(tmp_path: Path) -> None:
    done = titan(tmp_path, "--name", "x", CUDA_VISIBLE_DEVICES="1")
    assert done.returncode == 0, done.stdout + done.stderr
    (only,) = started(tmp_path / "runs" / "x")
    assert only["gpu"]["uuid"] == ALL[1]
    refused = titan(tmp_path, "--name", "y", "--cluster.gpus_per_node", "2", CUDA_VISIBLE_DEVICES="1")
    assert refused.returncode == 3
    assert "1 x h200 that CUDA_VISIBLE_DEVICES = '1' leaves" in refused.stderr
