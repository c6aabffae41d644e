"""What a run that has ended left to go on with, and the command that does.

Knows the run folder. Does not know what goes on (`titan launch --resume`), nor when a checkpoint is committed or whole.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from engine.checkpoint.committed import checkpoints_in, whole_step_to_load
from engine.checkpoint.places import place
from engine.config import Checkpoint
from engine.settled import read_settled
from titancli.monitor.follow import read_config


def goes_on_after(run: Path) -> int | None:
    """The step of the checkpoint that a run which keeps any would go on from, a damaged one passed over.

    TitanError where they cannot be listed, or none is whole.
    """
    if not saves(run):
        return None
    return whole_step_to_load(checkpoints_in(checkpoints_of_run(run)), asked_for(run))[0]


def asked_for(run: Path) -> int:
    """The step that a run would load: checkpoint.load_step, which is settled once it was loaded; -1 for the newest."""
    return -1 if _LOAD_STEP in read_settled(run) else int(_table(run, "checkpoint").get("load_step", -1))


def keeps(run: Path) -> int:
    """The number of checkpoints that a run keeps, 0 for all."""
    return int(_table(run, "checkpoint").get("keep_latest_k", _KEPT))


def checkpoints_of_run(run: Path) -> Path:
    """The folder in which a run keeps its checkpoints, as its config.toml says; TitanError D639 as `place`."""
    folder = str(_table(run, "checkpoint").get("folder", _FOLDER))
    return place(folder, key="checkpoint.folder", within=run)


def saves(run: Path) -> bool:
    """Whether the run keeps checkpoints."""
    return _table(run, "checkpoint").get("enable") is True


def go_on(run: Path) -> str:
    """The line for the shell that goes on with a run where it stands.

    From its newest step, where it has gone back to the one that its config asks for: not back to that again. On several
    nodes that nobody but a person starts, K and the place to meet are that person's to fill in.
    """
    scheduler = _table(run, "launch").get("scheduler")
    more = f" --scheduler {scheduler}" if scheduler in ("slurm", "kubernetes") else ""
    if not more and _table(run, "cluster").get("nodes", 1) > 1:
        more = " --node-rank K --rdzv-endpoint HOST:PORT"
    if _LOAD_STEP in read_settled(run):
        more += f" --{_LOAD_STEP} -1"
    config, name = shlex.quote(str(run / "config.toml")), shlex.quote(run.name)
    return f"titan launch {config} --resume --name {name}{more}"


_FOLDER, _KEPT, _LOAD_STEP = Checkpoint().folder, Checkpoint().keep_latest_k, "checkpoint.load_step"


def _table(run: Path, name: str) -> dict[str, Any]:
    table = read_config(run).get(name)
    return table if isinstance(table, dict) else {}
