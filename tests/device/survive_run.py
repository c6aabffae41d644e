"""`python tests/device/survive_run.py OUT.json`: what a run on real GPUs survives, seen from outside of it.

On every GPU of the machine, and on two where there are: a launcher that is killed in mid-run and resumed, compared with
a run that nobody touched, step by step; a rank that sleeps; a frozen one; a SIGTERM. Nothing may be left alive.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from engine.events import event_file, read_new

HERE = Path(__file__).resolve().parent
TITAN = (sys.executable, "-m", "titancli", "launch", str(HERE / "preflight.toml"))
MARK = "SURVIVE_MARK"
STEPS = 400


def launch(folder: Path, name: str, *words: str, faults: list[dict[str, Any]] | None = None) -> subprocess.Popen[str]:
    """Starts a launch of STEPS steps that saves every 50th."""
    environ = os.environ | {MARK: str(folder)}
    if faults:
        path = os.pathsep.join((str(HERE.parent / "world/planted"), environ.get("PYTHONPATH", "")))
        environ |= {"PYTHONPATH": path, "FAULT": json.dumps(faults)}
    saving = ("--checkpoint.enable", "--checkpoint.interval", "50", "--checkpoint.keep_latest_k", "2")
    gpus = ("--cluster.gpus_per_node", str(torch.cuda.device_count()))
    keys = ("--training.steps", str(STEPS), "--debug.deterministic", *saving, *gpus)
    return subprocess.Popen(
        [*TITAN, "--name", name, *keys, *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def steps_of(folder: Path, name: str) -> dict[int, tuple[float, float]]:
    """Loss and gradient norm of each step; the later attempt counts."""
    events, _ = read_new(event_file(folder / "runs" / name, 0))
    return {event["step"]: (event["loss"], event["grad_norm"]) for event in events if event["kind"] == "step"}


def wait_for_step(folder: Path, name: str, step: int, within_s: float = 120.0) -> None:
    """Waits until a step is logged."""
    end_s = time.monotonic() + within_s
    while max(steps_of(folder, name), default=0) < step:
        assert time.monotonic() < end_s, f"{name} has not come to step {step}"
        time.sleep(0.02)


def alive(folder: Path) -> list[int]:
    """Processes that carry the mark of this folder."""
    mark, found = f"{MARK}={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def ended(process: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """Exit code, last lines and who is left."""
    began_s = time.monotonic()
    text, _ = process.communicate(timeout=150)
    return {
        "exit": process.returncode,
        "seconds": round(time.monotonic() - began_s, 1),
        "last_lines": text.splitlines()[-14:],
        "left_alive": alive(folder),
    }


def main() -> None:
    """All of it, one after the other; prints and keeps what was seen."""
    folder = Path(tempfile.mkdtemp())
    seen: dict[str, Any] = {"torch": torch.__version__, "gpus": torch.cuda.device_count(), "date": time.strftime("%F")}
    seen["straight"] = ended(launch(folder, "straight"), folder)
    cut = launch(folder, "cut")
    wait_for_step(folder, "cut", 130)
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    began_s = time.monotonic()
    while alive(folder) and time.monotonic() < began_s + 30:
        time.sleep(0.1)
    seen["killed"] = {"all_gone_after_s": round(time.monotonic() - began_s, 1), "left_alive": alive(folder)}
    seen["resumed"] = ended(launch(folder, "cut", "--resume"), folder)
    straight, resumed = steps_of(folder, "straight"), steps_of(folder, "cut")
    seen["resumed"]["steps_equal_to_the_bit"] = sum(straight[step] == resumed.get(step) for step in straight)
    seen["resumed"]["steps"] = len(straight)
    asked = launch(folder, "asked")
    wait_for_step(folder, "asked", 60)
    asked.send_signal(signal.SIGTERM)
    seen["sigterm"] = ended(asked, folder)
    last = torch.cuda.device_count() - 1
    for name, do in (("sleeps", "sleep"), ("frozen", "stop"), ("raises", "raise"), ("nan", "nan")):
        fault = {"do": do, "rank": last, "at": "backward", "step": 60}
        seen[name] = ended(launch(folder, name, "--comm.train_timeout_seconds", "5", faults=[fault]), folder)
    shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(seen, indent=1)
    Path(sys.argv[1]).write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
