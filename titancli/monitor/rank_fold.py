"""What one rank of a run has come to, by its own events.

Knows the kinds of events that tell of a rank. Does not know the run (fold).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.events import Event
from titancli.monitor.profile import Profile
from titancli.monitor.ran_out import RanOut
from titancli.monitor.run_state import Failure, Rank
from titancli.monitor.values import as_number, as_text, as_whole

KEPT_PROFILES = 3


def update_rank(rank: Rank, event: Event, *, first_step: int) -> Rank:
    """The rank after one more event of its own; `first_step` of an attempt compiles, and is like no other."""
    time, kind = as_number(event.get("time")), event.get("kind")
    changes: dict[str, Any] = {"last_time": time if time is not None else rank.last_time}
    if rank.has_ended and kind != "run_ended":
        changes |= {"reason_ended": None, "exit_code": None, "failure": None}  # it was resumed
    match kind:
        case "phase" if event.get("name") == "build" and event.get("state") == "begin":
            changes |= {"began": time, "data_share": None}
        case "run_started":
            return _started(rank, event, changes)
        case "memory":
            changes |= _measured(rank, event)
        case "gpu":
            changes |= {"meters": event, "uuid": as_text(event.get("uuid")) or rank.uuid}
        case "step":
            changes |= _stepped(rank, event, first_step)
        case "run_ended":
            changes |= _ended(rank, event)
    return replace(rank, **changes)


def _started(rank: Rank, event: Event, changes: dict[str, Any]) -> Rank:
    """A new process: what the one before has used is gone with it."""
    gpu = event.get("gpu")
    name, uuid = (gpu.get("name"), gpu.get("uuid")) if isinstance(gpu, dict) else (None, None)
    return Rank(
        rank=rank.rank,
        host=as_text(event.get("host")),
        pid=as_whole(event.get("pid")),
        began=rank.began,
        gpu=as_text(name),
        uuid=as_text(uuid),
        profiles=rank.profiles,
        last_time=changes["last_time"],
    )


def _measured(rank: Rank, event: Event) -> dict[str, Any]:
    names = ("active_bytes", "reserved_bytes", "host_rss_bytes", "peak_reserved_bytes", "peak_active_bytes")
    active, reserved, host, *peaks = (as_whole(event.get(name)) for name in names)
    told = next((size for size in (*peaks, reserved, active, host) if size is not None), None)
    retries, before = as_whole(event.get("alloc_retries")), rank.alloc_retries
    retried = retries is not None and before is not None and retries > before
    return {
        "active_bytes": active,
        "reserved_bytes": reserved,
        "host_bytes": host,
        "peak_bytes": max((size for size in (told, rank.peak_bytes) if size is not None), default=None),
        "peak_active_bytes": max(
            (size for size in (peaks[1], rank.peak_active_bytes) if size is not None), default=None
        ),
        "cpu_pct": as_number(event.get("cpu_pct")),
        "alloc_retries": retries,
        "retried_time": as_number(event.get("time")) if retried else rank.retried_time,
        "ooms": as_whole(event.get("ooms")),
    }


def _stepped(rank: Rank, event: Event, first_step: int) -> dict[str, Any]:
    step = as_whole(event.get("step"))
    if step is None or step <= first_step:
        return {"data_share": None}
    breakdown, step_s = event.get("breakdown"), as_number(event.get("step_s"))
    waited_s = as_number(breakdown.get("data_s")) if isinstance(breakdown, dict) else None
    changes: dict[str, Any] = {"data_share": None if waited_s is None or not step_s else waited_s / step_s}
    profile = Profile.read(event)
    if profile is not None:
        # What is done anew after a restart takes the place of what was.
        before = (each for each in rank.profiles if each.step < profile.step)
        changes["profiles"] = (*before, profile)[-KEPT_PROFILES:]
    return changes


def _ended(rank: Rank, event: Event) -> dict[str, Any]:
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
    return {
        "reason_ended": as_text(event.get("reason")) or "ended",
        "exit_code": as_whole(event.get("exit_code")),
        "failure": told,
    }
