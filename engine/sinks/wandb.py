"""Events as a run of Weights & Biases.

Knows its id, kept in the run folder so that a resumed run goes on there, and that `step` is the x of every curve: W&B's
own count never goes back, and steps that are done anew would be thrown away. Does not know who is logged in: W&B's
variables are W&B's (WANDB_MODE, WANDB_API_KEY, WANDB_ENTITY, ...), but for WANDB_PROJECT, whose default is `titan`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.events import Event
from engine.extras import WANDB
from engine.planner.plan import Plan
from engine.sinks.scalars import ByStep

PROJECT = "titan"


def resolved(config: Config, plan: Plan) -> dict[str, Any]:
    """The config with the numbers that the plan has made of `auto` and -1."""
    values: dict[str, Any] = config.model_dump(mode="json")
    values["cluster"]["gpu"] = plan.gpu
    values["parallelism"]["data_parallel_shard_degree"] = plan.mesh.dp_shard
    values["training"]["local_batch_size"] = plan.local_batch_size
    values["training"]["global_batch_size"] = plan.global_batch_size
    values["activation_checkpoint"]["mode"] = plan.recompute.mode
    return values


class WandbSink:
    """Sends the events to one run of W&B, or keeps them in `wandb` of the run folder where it is offline."""

    key, name = WANDB.key, WANDB.name

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        self._folder, self._config = run.absolute(), config
        self._by_step = ByStep()
        self._early: list[Event] = []
        self._run: Any = None
        self._exit_code: int | None = None

    def load(self) -> None:
        """Imports the package; ImportError where it is not there."""
        import_module("wandb")

    def take(self, events: Sequence[Event]) -> None:
        """Logs the events; what comes before the beginning of the run waits for it."""
        for event in events:
            if event["kind"] == "run_started":
                self._open()
            if self._run is None:
                self._early.append(event)
            else:
                self._log(event)

    def close(self) -> None:
        """Ends W&B's run as this one has ended, and waits until W&B has everything."""
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)

    def advice(self, failure: BaseException) -> str:
        """What to do about a failure."""
        if isinstance(failure, ImportError):
            return f"{WANDB.pip}, or set {self.key} to false"
        if isinstance(failure, TimeoutError) and self._run is not None:
            return f"wandb sync {self._folder}/wandb/latest-run sends what it has of it"
        offline = "with WANDB_MODE=offline it is kept in the run folder, and wandb sync sends it later"
        if type(failure).__name__ in ("UsageError", "AuthenticationError"):
            return f"run wandb login on the machine of rank 0, or set WANDB_API_KEY; {offline}"
        return f"see to the way from the machine of rank 0 to W&B; {offline}"

    def _open(self) -> None:
        wandb: Any = import_module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=self._folder.name,
            id=_kept_id(self._folder / "wandb" / "run-id"),
            resume="allow",
            dir=str(self._folder),
            config=dict(self._config),
            # The output of ranks is in files of the run folder; W&B's own words would stand among it.
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        early, self._early = self._early, []
        for event in early:
            self._log(event)

    def _log(self, event: Event) -> None:
        if found := self._by_step.take(event):
            self._run.log({"step": self._by_step.step, **found})
        match event["kind"]:
            case "warning":
                title, text = f"titan: {self._folder.name}", str(event["message"])
                self._run.alert(title=title, text=text, level="WARN", wait_duration=1)
            case "run_ended":
                self._exit_code = event["exit_code"]
                self._run.summary["reason"] = event["reason"]


def _kept_id(file: Path) -> str:
    """The id of W&B's run: what an earlier start has kept, or a new one."""
    try:
        return file.read_text("utf-8").strip()
    except FileNotFoundError:
        pass
    new = uuid.uuid4().hex[:8]
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(new + "\n", "utf-8")
    partial.replace(file)
    return new
