"""A run: from its process group to how it ends.

Knows what is set up for the steps and what is written before and after them. Does not know the steps (training.py),
how the model is built (build.py) or where batches come from (data/).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.agree import Store, compare_all, facts_of
from engine.ahead import Source
from engine.build import Built, build
from engine.cards import driver
from engine.checkpoint.beginning import checkpoints_of
from engine.checkpoint.committed import step_folder
from engine.checkpoint.manifest import changes
from engine.config import Config
from engine.errors import EXIT_OK
from engine.events import EventLog
from engine.exporting import hand_over
from engine.feeding import Feed, ahead_of, feed_of, held_out_of
from engine.memory_failure import memory_fields_at, out_of_memory_in
from engine.meters.rank import RankMeters, rank_meters
from engine.parallel.mesh import local_device, process_group
from engine.planner.plan import Plan
from engine.profile.axes import note_groups
from engine.pulse import Pulse
from engine.recorder import Recorder, failure_of
from engine.report import gpu_of, versions
from engine.saving import CheckpointSaver
from engine.sinks import sinks_of
from engine.starting import Beginning, agree, go_back, load_into
from engine.stop import Stop, listening
from engine.training import Outcome, Training
from engine.validation import Validation


def fit(config: Config, plan: Plan, *, run: Path | None = None, source: Source | None = None) -> Outcome:
    """Trains, in this process and, where the plan has more, together with the others that torchrun started.

    `run` is the folder that events go to; without it they are only returned. `source` replaces
    the corpus of the config. Raises what went wrong, after writing `run_ended`; an out-of-memory too,
    whatever `training.on_out_of_memory` says: only who started all processes can start them again, as
    `titan launch` does (engine/shrink gives the next smaller batch).
    """
    device = local_device("cpu" if plan.gpu == "cpu" else "cuda")
    note_groups()
    # Processes that others brought together hear and end each other in their own way.
    joined = dist.is_initialized()
    rank = dist.get_rank() if joined else int(os.environ.get("RANK", "0"))
    log = EventLog(run, rank) if run is not None else None
    recorder = Recorder(log, sinks_of(config, plan, run=run, rank=rank))
    pulse = pulse_of(config, rank=rank, world_size=plan.world_size)
    watched = nullcontext() if joined else pulse.beating(recorder.leave_failed)
    try:
        with listening() as stop, recorder.sinks_open(), watched:
            try:
                around = Around(run=run, device=device, recorder=recorder, stop=stop, pulse=pulse)
                group = process_group(
                    device,
                    world_size=plan.world_size,
                    deadline_s=config.comm.init_timeout_seconds,
                    met=partial(_compare, config, plan, around),
                )
                with determinism(config), group:
                    outcome = _run(config, plan, around, source)
            except BaseException as failure:
                first = pulse.agree_on(failure_of(out_of_memory_in(failure) or failure, rank))
                recorder.end_failed(first, **memory_fields_at(failure, device=device, phase=recorder.phase))
                raise
            recorder.end_run(reason=outcome.reason, exit_code=outcome.exit_code, first_failure=None)
            return outcome
    finally:
        if log is not None:
            log.close()


def pulse_of(config: Config, *, rank: int, world_size: int) -> Pulse:
    """The pulse of a rank that begins: all until the end of the first step may take comm.init_timeout_seconds."""
    allowed_s = config.comm.init_timeout_seconds
    return Pulse(
        rank=rank, world_size=world_size, deadline_s=allowed_s, limit=f"comm.init_timeout_seconds = {allowed_s}"
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a run has around it before anything is built."""

    run: Path | None
    device: torch.device
    recorder: Recorder
    stop: Stop
    pulse: Pulse


def _compare(config: Config, plan: Plan, around: Around, store: Store, rank: int) -> None:
    """Refuses ranks that differ in what they run, before they compute together; rank 0 writes down what is harmless."""
    around.pulse.at("compare")
    gpu = gpu_of(around.device)
    mine = facts_of(
        config,
        plan,
        host=socket.gethostname(),
        versions=versions(around.device),
        gpu=None if gpu is None else gpu["name"],
        driver=None if gpu is None else driver().version,
    )
    warnings = compare_all(store, mine, rank=rank, world_size=plan.world_size)
    for warning in warnings if rank == 0 else ():
        around.recorder.write("warning", message=warning.message)
    around.pulse.at("meet")


def _run(config: Config, plan: Plan, around: Around, source: Source | None) -> Outcome:
    recorder, pulse = around.recorder, around.pulse
    pulse.at("build")
    recorder.begin("build")
    beginning = agree(config, plan, run=around.run)
    began = beginning.position
    if began.step >= config.training.steps:
        recorder.end()
        reason = f"completed before: all {began.step:,} steps are done, and the last one is saved"
        return Outcome(reason=reason, exit_code=EXIT_OK, last_step=began.step, steps=())
    built = build(config, plan, around.device)
    source = source or feed_of(
        *(config, plan),
        data_rank=built.world.data_rank,
        start=began,
        run=around.run,
        recorder=recorder,
        pulse=pulse,
    )
    _say_what_begins(plan, built, source, beginning, recorder)
    data = source.summary.identity if isinstance(source, Feed) else {}
    _load(config, built, beginning, around, data)
    saver = _saver(config, plan, built, beginning, around, data) if config.checkpoint.enable else None
    validation = _validation(config, plan, built, around) if config.validation.enable else None
    # The first step compiles.
    recorder.begin("compile" if config.compile.enable else "train")
    ahead = ahead_of(config, source, first_step=began.step + 1)
    with _meters(config, plan, around) as meters, ahead as source, saver or nullcontext():
        training = Training(
            *(config, plan, built),
            recorder=recorder,
            stop=around.stop,
            pulse=pulse,
            meters=meters,
            saver=saver,
            validation=validation,
            folder=around.run,
        )
        outcome = training.run(source, first_step=began.step + 1)
    if saver is not None and config.checkpoint.last_save_in_hf and outcome.exit_code == EXIT_OK:
        assert around.run is not None, "checkpoints are kept in a run folder"
        assert beginning.group is not None, "checkpoints are kept by all ranks"
        checkpoint = checkpoints_of(config, around.run) / step_folder(outcome.last_step)
        hand_over(config, plan, checkpoint, run=around.run, group=beginning.group, recorder=recorder, pulse=pulse)
    recorder.end()
    return outcome


def _validation(config: Config, plan: Plan, built: Built, around: Around) -> Validation:
    """What computes the loss of held-out text, which is read here: before the first step, so that it is known."""
    pulse = around.pulse
    held_out = held_out_of(config, plan, data_rank=built.world.data_rank, recorder=around.recorder, pulse=pulse)
    return Validation(config, built, held_out, pulse=pulse, stop=around.stop)


def _meters(config: Config, plan: Plan, around: Around) -> RankMeters:
    gpu = gpu_of(around.device)
    return rank_meters(
        None if gpu is None else gpu["uuid"],
        around.recorder,
        cluster=config.cluster,
        gpus_of_host=int(os.environ.get("LOCAL_WORLD_SIZE", plan.world_size // config.cluster.nodes)),
    )


def _say_what_begins(plan: Plan, built: Built, source: Source, beginning: Beginning, recorder: Recorder) -> None:
    loading = beginning.loading
    recorder.write(
        "run_started",
        world_size=plan.world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        local_parameters=built.local_parameters,
        gpu=gpu_of(built.device),
        versions=versions(built.device),
        plan=plan.to_json() if dist.get_rank() == 0 else None,
        data=source.summary.to_json() if isinstance(source, Feed) else None,
        resumed_from=beginning.resumed_from,
        loaded_from=None if loading is None else str(loading.path),
    )
    if isinstance(source, Feed) and (source.summary.bad_lines or source.summary.bad_files):
        recorder.write("warning", message=source.summary.text)


def _load(config: Config, built: Built, beginning: Beginning, around: Around, data: Mapping[str, Any]) -> None:
    """Says what is doubtful about what the run begins with, and loads it, if it is anything."""
    loading, group, warnings = beginning.loading, beginning.group, list(beginning.warnings)
    if loading is not None and group is not None:
        allowed_s = config.comm.save_timeout_seconds
        with around.pulse.within("load", allowed_s, f"comm.save_timeout_seconds = {allowed_s}"):
            around.recorder.begin("load")
            load_into(built, loading, group=group)
            if around.run is not None and loading.manifest is not None:
                warnings += changes(loading.manifest, config, data=data, path=loading.path)
                warnings += go_back(config, loading, run=around.run, group=group)
    for warning in warnings if dist.get_rank() == 0 else ():
        around.recorder.write("warning", message=warning.message)


def _saver(
    config: Config, plan: Plan, built: Built, beginning: Beginning, around: Around, data: Mapping[str, Any]
) -> CheckpointSaver:
    assert around.run is not None, "checkpoints are kept in a run folder"
    assert beginning.group is not None, "where checkpoints are saved, ranks have looked for one"
    return CheckpointSaver(
        config,
        plan,
        built,
        folder=checkpoints_of(config, around.run),
        group=beginning.group,
        recorder=around.recorder,
        pulse=around.pulse,
        began=beginning.position,
        data=data,
    )
