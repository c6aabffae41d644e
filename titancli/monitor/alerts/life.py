"""Alerts W1xx: how a run fares. A rank that failed, a checkpoint that is not there, processes that are gone or silent.

Knows what events and the state of a run tell of that. Does not know where its time goes (step_time).
"""

from __future__ import annotations

from collections.abc import Iterator

from titancli import figures
from titancli.monitor.alerts.alert import Alert, Case, Look
from titancli.monitor.follow import silence_s

# As long as a checkpoint or a first step may take without a word; longer where steps are.
_QUIET_S, _QUIET_STEPS = 120.0, 20


def _failed(look: Look) -> Iterator[Case]:
    failure = look.failure
    if failure is not None:
        first_line = (failure.message.splitlines() or [""])[0]
        yield Case(
            words={"run": look.run, "rank": failure.rank, "type": failure.type, "text": first_line},
            about=frozenset({failure.rank}),
        )


def _unsaved(look: Look) -> Iterator[Case]:
    seen = look.seen
    if seen.unsaved_step is not None:
        kept = "none is kept" if seen.saved_step is None else f"the newest kept is that of step {seen.saved_step:,}"
        yield Case(words={"step": f"{seen.unsaved_step:,}", "kept": kept}, about=frozenset({seen.unsaved_step}))


def _wordless(look: Look) -> Iterator[Case]:
    if look.state == "failed" and look.failure is None:
        yield Case(words={"run": look.run})


def _gone(look: Look) -> Iterator[Case]:
    if look.state == "dead":
        yield Case(words={"run": look.run})


def _silent(look: Look) -> Iterator[Case]:
    quiet_s = silence_s(look.seen, look.now)
    patience_s = max(_QUIET_S, _QUIET_STEPS * (look.seen.step_s or 0.0))
    # A validation writes when it is over, and may be of much text; ranks that are stuck in it end themselves.
    is_validating = look.seen.phase == "validate"
    if look.state == "running" and not is_validating and quiet_s is not None and quiet_s > patience_s:
        yield Case(
            words={"run": look.run, "time": figures.duration(quiet_s // 60 * 60)},
            about=frozenset({look.seen.last_time}),
        )


def _unheard(look: Look) -> Iterator[Case]:
    ranks = tuple(row["rank"] for row in look.rows if row["rank"] not in look.seen.ranks)
    if ranks and look.seen.ranks and look.state == "running":
        yield Case(words={"run": look.run, "ranks": figures.ranges(ranks), "first": ranks[0]})


def _said(look: Look) -> Iterator[Case]:
    for warning in look.seen.warnings:
        yield Case(words={"warning": warning.line}, about=frozenset({warning.message}))


LIFE_ALERTS = (
    Alert(
        id="W101",
        severity="error",
        cases=_failed,
        message="rank {rank} failed first: {type}: {text}",
        fix="titan logs {run} --rank {rank} shows all that it said",
        why="of all ranks that end, one is the cause; the others only lost it",
    ),
    Alert(
        id="W102",
        severity="error",
        key="checkpoint.folder",
        cases=_unsaved,
        message="the checkpoint of step {step} could not be saved: {kept}",
        fix="make room on the disk of checkpoint.folder, or let the run write there; it tries again at the next save",
        why="training goes on, and what it does since the newest checkpoint that is kept is lost if it ends",
    ),
    Alert(
        id="W103",
        severity="error",
        cases=_gone,
        message="its processes are gone and none of them said why",
        fix="titan logs {run} shows what they printed last, dmesg whether the system killed them; titan launch with "
        "--name {run} --resume goes on from the newest checkpoint",
        why="a process that the system kills, or whose machine is gone, cannot write how it ended",
    ),
    Alert(
        id="W104",
        severity="error",
        key="comm.train_timeout_seconds",
        cases=_silent,
        message="no rank has written anything for {time}",
        fix="titan logs {run} --follow shows what they say; ranks that are stuck end after comm.train_timeout_seconds",
        why="every rank writes at each report; nothing for 2 minutes and 20 steps is no slow step any more",
    ),
    Alert(
        id="W105",
        cases=_unheard,
        message="not heard of yet: rank {ranks}",
        fix="titan logs {run} --rank {first} shows how far it has come",
        why="all ranks of a run begin together, and each writes before its first step",
    ),
    Alert(
        id="W106",
        cases=_said,
        message="{warning}",
        fix="",
        why="a rank has written a warning; its own words say what to do",
    ),
    Alert(
        id="W107",
        severity="error",
        cases=_wordless,
        message="the run failed and no rank said why",
        fix="titan logs {run} shows what ranks and torchrun printed last; titan launch with --name {run} --resume goes "
        "on from the newest checkpoint",
        why="a run may fail outside of its ranks, as where processes cannot be started or torchrun loses their node",
    ),
)
