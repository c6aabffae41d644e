"""What a run has come to, as a fold over its events.

Knows the kinds of events and what each changes of the run; of one rank of it: rank_fold. Does not know files, processes
or the screen. A kind or a field that it does not know changes nothing: a newer engine may say more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from engine.events import Event
from titancli.monitor.rank_fold import update_rank
from titancli.monitor.run_state import Rank, Report, RunState, Warned
from titancli.monitor.values import as_number, as_whole

KEPT_SPEEDS = 1000
KEPT_REPORTS = 40
KEPT_WARNINGS = 5
# Between ranks of one attempt lie their clocks; between attempts, at least the start of all processes.
_TOGETHER_S = 2.0
_STEP = re.compile(r"step-(\d+)/?$")


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
        ranks[number] = _anew(update_rank(before, event, first_step=(state.resumed_step or 0) + 1), state)
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
        reports=(),
        speeds=(),
        step_seconds=(),
        saving_step=None,
        unsaved_step=None,
        validation_step=None,
        validation_loss=None,
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
        case "validation" if is_first:
            step, loss = as_whole(event.get("step")), as_number(event.get("loss"))
            return replace(state, validation_step=step, validation_loss=loss)
        case "warning":
            return replace(state, warnings=_warned(state.warnings, event))
        case "checkpoint":
            return _saved(state, event, is_first=is_first)
        case _:
            return state


def _warned(warnings: tuple[Warned, ...], event: Event) -> tuple[Warned, ...]:
    """The newest warnings; what many ranks say in the same words is one."""
    message, rank = str(event.get("message")), as_whole(event.get("rank")) or 0
    for place, warned in enumerate(warnings):
        if warned.message == message:
            ranks = warned.ranks if rank in warned.ranks else tuple(sorted((*warned.ranks, rank)))
            return (*warnings[:place], Warned(message=message, ranks=ranks), *warnings[place + 1 :])
    return (*warnings, Warned(message=message, ranks=(rank,)))[-KEPT_WARNINGS:]


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
    plan, resumed = event.get("plan"), step_of(event.get("resumed_from"))
    state = replace(state, curve=state.curve.up_to(resumed or 0))
    return replace(
        state,
        world_size=world_size,
        plan=plan if isinstance(plan, dict) else state.plan,
        started=as_number(event.get("time")),
        step=resumed,
        resumed_step=resumed,
        first_loss=state.first_loss if state.losses else None,
    )


def step_of(resumed_from: object) -> int | None:
    """The step of the checkpoint that a run goes on from; None where it begins at its first."""
    if isinstance(resumed_from, str):
        found = _STEP.search(resumed_from)
        return int(found[1]) if found else None
    return as_whole(resumed_from.get("step") if isinstance(resumed_from, dict) else resumed_from)


def _stepped(state: RunState, event: Event) -> RunState:
    step, loss, speed, step_s = (
        as_number(event.get(name)) for name in ("step", "loss", "tokens_per_s_per_gpu", "step_s")
    )
    is_warm = step is not None and step > (state.resumed_step or 0) + 1
    before = state.curve if step is None else state.curve.up_to(int(step) - 1)
    grad_norm = as_number(event.get("grad_norm"))
    is_finite = event.get("grad_norm", 0.0) is not None
    report = Report(step=int(step or 0), loss=loss, grad_norm=grad_norm, is_finite=is_finite)
    return replace(
        state,
        step=None if step is None else int(step),
        loss=loss,
        first_loss=state.first_loss if before.losses and state.first_loss is not None else loss,
        grad_norm=grad_norm,
        lr=as_number(event.get("lr")),
        step_s=step_s,
        tokens_per_s_per_gpu=speed,
        mfu_pct=as_number(event.get("mfu_pct")),
        curve=before if loss is None else before.with_point(int(step or 0), loss),
        reports=(*(each for each in state.reports if each.step < report.step), report)[-KEPT_REPORTS:],
        speeds=(*state.speeds, speed)[-KEPT_SPEEDS:] if is_warm and speed is not None else state.speeds,
        step_seconds=(*state.step_seconds, step_s)[-20:] if is_warm and step_s is not None else state.step_seconds,
    )
