"""A run: from its process group to how it ends.

Knows what is set up for the steps and what is written before and after them. Does not know the steps (training.py),
how the model is built (build.py) or where batches come from (data/).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from engine.build import build
from engine.config import Config
from engine.data.loader import Loader
from engine.events import EventLog
from engine.memory_failure import memory_fields_at, out_of_memory_in
from engine.parallel.mesh import local_device, process_group
from engine.planner.plan import Plan
from engine.recorder import Recorder, failure_fields
from engine.report import gpu_of, versions
from engine.stop import Stop, listening
from engine.training import Outcome, Source, Training


def fit(config: Config, plan: Plan, *, run: Path | None = None, source: Source | None = None) -> Outcome:
    """Trains, in this process and, where the plan has more, together with the others that torchrun started.

    `run` is the folder that events go to; without it they are only returned. `source` replaces
    the corpus of the config. Raises what went wrong, after writing `run_ended`; an out-of-memory too,
    whatever `training.on_out_of_memory` says: only who started all processes can start them again, as
    `titan launch` does (engine/shrink gives the next smaller batch).
    """
    device = local_device("cpu" if plan.gpu == "cpu" else "cuda")
    rank = int(os.environ.get("RANK", "0")) if not dist.is_initialized() else dist.get_rank()
    log = EventLog(run, rank) if run is not None else None
    recorder = Recorder(log)
    try:
        with (
            listening() as stop,
            determinism(config),
            process_group(device, world_size=plan.world_size, timeout_s=config.comm.init_timeout_seconds),
        ):
            outcome = _run(config, plan, device=device, recorder=recorder, stop=stop, source=source)
    except BaseException as failure:
        told = failure_fields(out_of_memory_in(failure) or failure, rank)
        recorder.write("run_ended", **told, **memory_fields_at(failure, device=device, phase=recorder.phase))
        raise
    else:
        recorder.write("run_ended", reason=outcome.reason, exit_code=outcome.exit_code, first_failure=None)
        return outcome
    finally:
        if log is not None:
            log.close()


@contextmanager
def determinism(config: Config) -> Iterator[None]:
    """Seeds torch and, where asked, allows deterministic kernels only; puts the latter back."""
    torch.manual_seed(config.debug.seed)
    before = torch.are_deterministic_algorithms_enabled()
    if config.debug.deterministic:
        # cuBLAS reads it when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _run(
    config: Config, plan: Plan, *, device: torch.device, recorder: Recorder, stop: Stop, source: Source | None
) -> Outcome:
    recorder.begin("build")
    built = build(config, plan, device)
    source = source or Loader(config, plan, data_rank=built.world.data_rank)
    recorder.write(
        "run_started",
        world_size=plan.world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        local_parameters=built.local_parameters,
        gpu=gpu_of(device),
        versions=versions(device),
        plan=plan.to_json() if dist.get_rank() == 0 else None,
        data=asdict(source.summary) if isinstance(source, Loader) else None,
        resumed_from=None,
    )
    if isinstance(source, Loader) and (source.summary.bad_lines or source.summary.bad_files):
        recorder.write("warning", message=source.summary.text)
    # The first step compiles.
    recorder.begin("compile" if config.compile.enable else "train")
    outcome = Training(config, plan, built, recorder=recorder, stop=stop).run(source)
    recorder.end()
    return outcome
