"""What a run has come to, as a fold over its events.

Knows the kinds of events and what each changes. Does not know files, processes or the screen.
A kind or a field that it does not know changes nothing: a newer engine may say more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from engine.events import Event
from titancli.monitor.ran_out import RanOut
from titancli.monitor.run_state import Failure, Rank, RunState
from titancli.monitor.values import as_number, as_text, as_whole

KEPT_LOSSES = 120
KEPT_SPEEDS = 1000
KEPT_WARNINGS = 5
# Between ranks of one attempt lie their clocks; between attempts, at least the start of all processes.
_TOGETHER_S = 2.0
_STEP = re.compile(r"step-(\d+)/?$")
_IDLE_CAUSES = ("data_s", "exposed_comm_s", "bubble_s", "host_s", "other_s")


def fold(state: RunState, events: Iterable[Event]) -> RunState:
    """The state after some more events; pure."""
    ranks = dict(state.ranks)
    for event in events:
        number = as_whole(event.get("rank"))
        if number is None:
            continue
        anew = _begun(state, event) if number == 0 else None
        if anew is not None:
            state = anew
            ranks = {rank: _anew(old, state) for rank, old in ranks.items()}
        before = ranks.get(number, Rank(rank=number))
        ranks[number] = _anew(_update_rank(before, event), state)
        state = _update_run(state, event, is_first=number == 0)
    return replace(state, ranks={number: rank for number, rank in ranks.items() if not _is_left_over(rank, state)})


def _begun(state: RunState, event: Event) -> RunState | None:
    """The state where all ranks begin again, as the launcher says or rank 0 does; None where they do not."""
    time, kind = as_number(event.get("time")), event.get("kind")
    if kind == "warning" and event.get("restarts") is True:
        return replace(_without_attempt(state), restarted=time, warnings=())
    if kind == "phase" and event.get("name") == "build" and event.get("state") == "begin":
        told = state.restarted is not None and state.restarted > (state.began or 0.0)
        anew = replace(_without_attempt(state), began=time, starts=state.starts + 1)
        return anew if told else replace(anew, warnings=())
    return None


def _without_attempt(state: RunState) -> RunState:
    """The state without what is true of one attempt only; the curve stays until it is known where the next goes on."""
    return replace(
        state,
        step=None,
        loss=None,
        grad_norm=None,
        lr=None,
        step_s=None,
        tokens_per_s_per_gpu=None,
        mfu_pct=None,
        phase=None,
        speeds=(),
        step_seconds=(),
        saving_step=None,
        unsaved_step=None,
    )


def _anew(rank: Rank, state: RunState) -> Rank:
    """A rank without the end of an earlier attempt; files of ranks are read one after another."""
    if not rank.has_ended or not _is_before(rank, state):
        return rank
    return replace(rank, reason_ended=None, exit_code=None, failure=None)


def _is_before(rank: Rank, state: RunState) -> bool:
    """Whether a rank spoke last before all began again. Ranks begin together, once all of them have met."""
    last = rank.last_time or 0.0
    if state.restarted is not None and last <= state.restarted:
        return True
    if state.began is None or last > state.began:
        return False
    return rank.began is None or state.began - rank.began > _TOGETHER_S


def _is_left_over(rank: Rank, state: RunState) -> bool:
    """Whether a rank belongs to an earlier attempt that had more of them."""
    return state.world_size is not None and rank.rank >= state.world_size and _is_before(rank, state)


def _update_run(state: RunState, event: Event, *, is_first: bool) -> RunState:
    time = as_number(event.get("time"))
    if time is not None and time > (state.last_time or 0.0):
        state = replace(state, last_time=time)
    match event.get("kind"):
        case "run_started":
            return _started(state, event, is_first=is_first)
        case "phase" if is_first:
            name = str(event.get("name"))
            ended = event.get("state") == "end"
            return replace(state, phase=None if ended and state.phase == name else state.phase if ended else name)
        case "step" if is_first:
            return _stepped(state, event)
        case "warning":
            text = f"rank {event.get('rank')}: {event.get('message')}"
            return replace(state, warnings=(*state.warnings, text)[-KEPT_WARNINGS:])
        case "checkpoint":
            return _saved(state, event, is_first=is_first)
        case _:
            return state


def _saved(state: RunState, event: Event, *, is_first: bool) -> RunState:
    """Rank 0 tells of each checkpoint, every rank of what it could not write."""
    step = as_whole(event.get("step"))
    match event.get("state"):
        case "begun" if is_first:
            return replace(state, saving_step=step, unsaved_step=None)
        case "committed" if is_first:
            return replace(
                state, saved_step=step, saved_time=as_number(event.get("time")), saving_step=None, unsaved_step=None
            )
        case "failed":
            return replace(state, unsaved_step=step, saving_step=None)
        case _:
            return state


def _started(state: RunState, event: Event, *, is_first: bool) -> RunState:
    world_size = as_whole(event.get("world_size")) or state.world_size
    if not is_first:
        return replace(state, world_size=world_size)
    plan, resumed = event.get("plan"), _step_of(event.get("resumed_from"))
    state = _cut(state, resumed or 0)
    return replace(
        state,
        world_size=world_size,
        plan=plan if isinstance(plan, dict) else state.plan,
        started=as_number(event.get("time")),
        step=resumed,
        resumed_step=resumed,
        first_loss=state.first_loss if state.losses else None,
    )


def _step_of(resumed_from: object) -> int | None:
    """The step of the checkpoint that a run goes on from; None where it begins at its first."""
    if isinstance(resumed_from, str):
        found = _STEP.search(resumed_from)
        return int(found[1]) if found else None
    return as_whole(resumed_from.get("step") if isinstance(resumed_from, dict) else resumed_from)


def _cut(state: RunState, last: int) -> RunState:
    """The state with the curve up to a step: later ones are done anew."""
    kept = sum(step <= last for step in state.logged_steps)
    return replace(state, losses=state.losses[:kept], logged_steps=state.logged_steps[:kept])


def _stepped(state: RunState, event: Event) -> RunState:
    step, loss, speed, step_s = (
        as_number(event.get(name)) for name in ("step", "loss", "tokens_per_s_per_gpu", "step_s")
    )
    is_warm = step is not None and step > (state.resumed_step or 0) + 1
    if step is not None:
        state = _cut(state, int(step) - 1)
    return replace(
        state,
        step=None if step is None else int(step),
        loss=loss,
        first_loss=state.first_loss if state.losses and state.first_loss is not None else loss,
        grad_norm=as_number(event.get("grad_norm")),
        lr=as_number(event.get("lr")),
        step_s=step_s,
        tokens_per_s_per_gpu=speed,
        mfu_pct=as_number(event.get("mfu_pct")),
        losses=state.losses if loss is None else (*state.losses, loss)[-KEPT_LOSSES:],
        logged_steps=state.logged_steps if loss is None else (*state.logged_steps, int(step or 0))[-KEPT_LOSSES:],
        speeds=(*state.speeds, speed)[-KEPT_SPEEDS:] if is_warm and speed is not None else state.speeds,
        step_seconds=(*state.step_seconds, step_s)[-20:] if is_warm and step_s is not None else state.step_seconds,
    )


def _update_rank(rank: Rank, event: Event) -> Rank:
    time = as_number(event.get("time"))
    rank = replace(rank, last_time=time if time is not None else rank.last_time)
    if rank.has_ended and event.get("kind") != "run_ended":
        rank = replace(rank, reason_ended=None, exit_code=None, failure=None)  # it was resumed
    if event.get("kind") == "phase" and event.get("name") == "build" and event.get("state") == "begin":
        return replace(rank, began=time)
    match event.get("kind"):
        case "run_started":
            gpu = event.get("gpu")
            name, uuid = (gpu.get("name"), gpu.get("uuid")) if isinstance(gpu, dict) else (None, None)
            return Rank(
                rank=rank.rank,
                host=as_text(event.get("host")),
                pid=as_whole(event.get("pid")),
                began=rank.began,
                gpu=as_text(name),
                uuid=as_text(uuid),
                last_time=rank.last_time,
            )
        case "memory":
            return _measured(rank, event)
        case "gpu":
            links = [as_number(event.get(f"nvlink_{way}_bytes_per_s")) for way in ("rx", "tx")]
            known = [link for link in links if link is not None]
            return replace(
                rank,
                sm_pct=as_number(event.get("sm_pct")),
                link_bytes_per_s=max(known) if known else None,
                reason=as_text(event.get("reason")) or "",
            )
        case "step":
            return _idle(rank, event)
        case "run_ended":
            return _ended(rank, event)
        case _:
            return rank


def _measured(rank: Rank, event: Event) -> Rank:
    names = ("active_bytes", "reserved_bytes", "host_rss_bytes", "peak_reserved_bytes", "peak_active_bytes")
    active, reserved, host, *peaks = (as_whole(event.get(name)) for name in names)
    told = next((size for size in (*peaks, reserved, active, host) if size is not None), None)
    return replace(
        rank,
        active_bytes=active,
        reserved_bytes=reserved,
        host_bytes=host,
        peak_bytes=max((size for size in (told, rank.peak_bytes) if size is not None), default=None),
        alloc_retries=as_whole(event.get("alloc_retries")),
        ooms=as_whole(event.get("ooms")),
    )


def _idle(rank: Rank, event: Event) -> Rank:
    """Share of the step in which the rank did not compute, by cause; None where the engine took no profile."""
    breakdown, step_s = event.get("breakdown"), as_number(event.get("step_s"))
    if not isinstance(breakdown, dict) or not step_s:
        return rank
    compute_s = as_number(breakdown.get("compute_s"))
    if compute_s is None:
        return replace(rank, idle_pct=None, idle=None)
    causes: dict[str, float] = {}
    for name in _IDLE_CAUSES:
        value = breakdown.get(name)
        values = list(value.values()) if isinstance(value, dict) else [value]
        seconds = [part for part in map(as_number, values) if part is not None]
        if seconds:
            causes[name.removesuffix("_s")] = 100 * sum(seconds) / step_s
    return replace(rank, idle_pct=100 * (1 - compute_s / step_s), idle=causes)


def _ended(rank: Rank, event: Event) -> Rank:
    failure = event.get("first_failure")
    told = None
    if isinstance(failure, dict):
        who = as_whole(failure.get("rank"))
        told = Failure(
            rank=rank.rank if who is None else who,
            host=as_text(failure.get("host")),
            type=as_text(failure.get("type")) or "error",
            message=as_text(failure.get("message")) or "",
            place=as_text(failure.get("place")) or "",
            ran_out=RanOut.read(event.get("memory")) if who in (None, rank.rank) else None,
        )
    return replace(
        rank,
        reason_ended=as_text(event.get("reason")) or "ended",
        exit_code=as_whole(event.get("exit_code")),
        failure=told,
    )
