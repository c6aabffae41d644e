"""The `titan` command as a person runs it: a process of its own, in a folder of its own."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TITAN = (sys.executable, "-P", "-c", "import sys; sys.argv[0] = 'titan'; from titancli.start import main; main()")
SMALL_RUN = ("--preset", "quickstart", "--training.steps", "6", "--lr_scheduler.warmup_steps", "1")


@dataclass(frozen=True)
class Ran:
    """What a command did: its exit code and what it wrote."""

    code: int
    out: str
    err: str


Titan = Callable[..., Ran]


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TITAN_", "COLUMNS"))}
    return kept | more


@pytest.fixture
def titan(tmp_path: Path) -> Titan:
    """`titan("validate", "run.toml")` runs the command in tmp_path."""

    def run(*words: str, cwd: Path = tmp_path, **environ: str) -> Ran:
        done = subprocess.run(
            [*TITAN, *words],
            cwd=cwd,
            env=clean_environment(**environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def titan_command() -> tuple[str, ...]:
    """The words that start `titan`."""
    return TITAN


@pytest.fixture
def usual_port() -> Iterator[int]:
    """The port that rendezvous usually have, for one test of this machine at a time."""
    with Path(tempfile.gettempdir(), f"titan-tests-{os.getuid()}-29500.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield 29500


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A real run of two processes that is complete, in `<folder>/runs/done`, and what its launch wrote."""
    folder = tmp_path_factory.mktemp("finished")
    done = subprocess.run(
        [*TITAN, "launch", *SMALL_RUN, "--name", "done"],
        cwd=folder,
        env=clean_environment(RANK="7", WORLD_SIZE="9", MASTER_ADDR="nowhere.invalid", TITAN_JOB__DESCRIPTION="said"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return folder / "runs" / "done", Ran(done.returncode, done.stdout, done.stderr)


SMALL_CONFIG = """\
[cluster]
gpu = "cpu"
gpus_per_node = 2

[model.shape]
dim = 32
n_layers = 1
n_heads = 2
n_kv_heads = 2
ffn_dim = 64
vocab_size = 259

[training]
seq_len = 16
steps = 4
mixed_precision_param = "float32"
dataset = "{dataset}"
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a config; gives its name. `path` becomes training.dataset_path, `more` stands behind it."""
    monkeypatch.chdir(tmp_path)

    def write(dataset: str = "jsonl", path: str | None = "corpus", more: str = "") -> str:
        named = "" if path is None else f'dataset_path = "{path}"\n'
        Path("run.toml").write_text(SMALL_CONFIG.format(dataset=dataset) + named + more, "utf-8")
        return "run.toml"

    return write
