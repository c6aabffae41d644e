"""Where the events of a run go beside its folder: TensorBoard, Weights & Biases, a file for Prometheus.

Knows which of them a config asks for on which rank. Does not know what an event means there (one file a sink), nor
what becomes of one that fails or does not keep up (feed.py).
"""

from __future__ import annotations

from pathlib import Path

from engine.config import Config
from engine.planner.plan import Plan
from engine.sinks.feed import Sink
from engine.sinks.prometheus import PrometheusSink, file_of, is_of_each_rank
from engine.sinks.tensorboard import TensorBoardSink
from engine.sinks.wandb import WandbSink, resolved

__all__ = ["Sink", "sinks_of"]


def sinks_of(config: Config, plan: Plan, *, run: Path | None, rank: int) -> tuple[Sink, ...]:
    """The sinks of one rank: rank 0's tell of the run, and others only where each has a Prometheus file of its own.

    Without a run folder there are none: what goes on in a resumed run is kept there.
    """
    if run is None:
        return ()
    metrics, found = config.metrics, list[Sink]()
    if metrics.enable_tensorboard and rank == 0:
        found.append(TensorBoardSink(run / "tensorboard"))
    if metrics.enable_wandb and rank == 0:
        found.append(WandbSink(run, resolved(config, plan)))
    path = metrics.prometheus_file
    if path is not None and (rank == 0 or is_of_each_rank(path)):
        name = run.absolute().name
        file = file_of(path, run=name, rank=rank)
        found.append(PrometheusSink(file, run=name, rank=rank, steps=config.training.steps))
    return tuple(found)
