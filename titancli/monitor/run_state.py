"""What is known of a run at one moment: its figures, its ranks, and which failure is the cause of the others.

Knows how an error reads that only follows from the loss of another rank. Does not know events (fold).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from titancli import figures
from titancli.monitor.curve import Curve
from titancli.monitor.profile import Profile
from titancli.monitor.ran_out import RanOut

WAITED = "killed as it waited for a rank that had failed"
"""What is said of a rank that could not end by itself."""
_PEER_LOST = (
    WAITED,
    "connection closed by peer",
    "connection closed by remote peer",
    "connection reset by peer",
    "connection refused",
    "connection was likely closed",
    "broken pipe",
    "socket timeout",
    "timed out waiting",
    "timed out after",
    "failed to recv, got 0 bytes",
    "recvvalue failed",
    "recvvaluewithtimeout failed",
    "sendbytes failed",
    "application timeout caused pair closure",
    "watchdog caught collective operation timeout",
    "nccl communicator was aborted",
    "ncclremoteerror",
    "remote process exited",
    "heartbeat monitor timed out",
    "signal 15",
    "signal: 15",
    "sigterm",
)


SILENT = "EarlyExit"
"""The type of the failure of a rank that ended without a word."""
SEEN_BY_OTHERS = frozenset({"LostRank", "StuckRank"})
"""Types of failures that other ranks tell of one that cannot speak for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a rank ended: the type and text of its error, its line of code, and its figures where memory ran out."""

    rank: int
    host: str | None
    type: str
    message: str
    place: str = ""
    ran_out: RanOut | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of the run; None is not known.

    `meters` is the newest `gpu` event. `profiles` are the newest, the last one last; they outlive a new start of the
    process. `data_share` is the part of a step that the host waited for data, with or without a profile; the first
    step of a process does not count. `retried_time` is when the allocator was last seen to have asked again.
    """

    rank: int
    host: str | None = None
    pid: int | None = None
    began: float | None = None
    gpu: str | None = None
    uuid: str | None = None
    active_bytes: int | None = None
    reserved_bytes: int | None = None
    host_bytes: int | None = None
    peak_bytes: int | None = None
    peak_active_bytes: int | None = None
    cpu_pct: float | None = None
    alloc_retries: int | None = None
    retried_time: float | None = None
    ooms: int | None = None
    meters: Mapping[str, Any] = field(default_factory=dict)
    profiles: tuple[Profile, ...] = ()
    data_share: float | None = None
    last_time: float | None = None
    reason_ended: str | None = None
    exit_code: int | None = None
    failure: Failure | None = None

    @property
    def used_bytes(self) -> int | None:
        """What the rank takes from its GPU (reserved by the allocator, else in use), or without one from the host."""
        sizes = (self.reserved_bytes, self.active_bytes, self.host_bytes)
        return next((size for size in sizes if size is not None), None)

    @property
    def profile(self) -> Profile | None:
        """The newest profile; it may be of an earlier attempt."""
        return self.profiles[-1] if self.profiles else None

    @property
    def has_ended(self) -> bool:
        """Whether the rank said that it ended."""
        return self.reason_ended is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What rank 0 said of one step; `is_finite` is False where it told a gradient norm that is no number."""

    step: int
    loss: float | None
    grad_norm: float | None
    is_finite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A warning, and the ranks that said it in the same words, in rising order."""

    message: str
    ranks: tuple[int, ...]

    @property
    def line(self) -> str:
        """`rank 3: text`, or `ranks 0-511: text`."""
        return f"rank{'' if len(self.ranks) == 1 else 's'} {figures.ranges(self.ranks)}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run as its events tell it.

    `starts` is how often rank 0 began, `began` when it did so last, `restarted` when the launcher last said that it
    starts all ranks again. `resumed_step` is the one that this attempt goes on from. `curve` covers the whole run,
    `reports` the newest steps of this attempt.
    """

    world_size: int | None = None
    plan: Mapping[str, Any] | None = None
    started: float | None = None
    step: int | None = None
    loss: float | None = None
    first_loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu_pct: float | None = None
    curve: Curve = field(default_factory=Curve)
    reports: tuple[Report, ...] = ()
    speeds: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()
    phase: str | None = None
    last_time: float | None = None
    warnings: tuple[Warned, ...] = ()
    starts: int = 0
    began: float | None = None
    restarted: float | None = None
    resumed_step: int | None = None
    saving_step: int | None = None
    saved_step: int | None = None
    saved_time: float | None = None
    unsaved_step: int | None = None
    validation_step: int | None = None
    validation_loss: float | None = None
    ranks: Mapping[int, Rank] = field(default_factory=dict)

    @property
    def losses(self) -> tuple[float, ...]:
        """Losses of the whole run, as far apart at its beginning as at its end."""
        return self.curve.losses

    @property
    def logged_steps(self) -> tuple[int, ...]:
        """The steps of `losses`."""
        return self.curve.steps

    @property
    def gpu(self) -> str | None:
        """The GPU that the plan is for, `cpu` for processors; None until a rank has told the plan."""
        kind = (self.plan or {}).get("gpu")
        return kind if isinstance(kind, str) else None

    @property
    def first_failure(self) -> Failure | None:
        """The failure that came first; a rank that only lost its peers is passed over where another is at fault."""
        failures = self.failures
        return failures[0] if failures else None

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Failures in the order of cause: those of ranks that only lost their peers come last."""
        failed = [rank for rank in self.ranks.values() if rank.failure is not None]
        failed.sort(key=lambda rank: (*weight(rank.failure), rank.last_time or 0.0, rank.rank))
        told: dict[tuple[int, str, str], Failure] = {}
        for failure in (rank.failure for rank in failed if rank.failure is not None):
            key = failure.rank, failure.type, failure.message
            # All ranks may tell of one's failure; only itself has the figures of its memory.
            if key not in told or failure.ran_out is not None:
                told[key] = failure
        return tuple(told.values())


def weight(failure: Failure | None) -> tuple[bool, bool]:
    """Orders failures by what they tell of the cause: one's own error, what others saw of a rank, what only follows."""
    return follows(failure), failure is not None and failure.type in SEEN_BY_OTHERS


def is_told_elsewhere(failure: Failure) -> bool:
    """Whether the cause is rather what others can tell: the rank only lost another one, or has said nothing."""
    return follows(failure) or failure.type == SILENT


def follows(failure: Failure | None) -> bool:
    """Whether an error reads like the loss of another rank: it follows from a failure and is not its cause."""
    if failure is None:
        return False
    if failure.type in SEEN_BY_OTHERS:
        return False
    if failure.type == "PeerFailed":
        return True
    text = f"{failure.type} {failure.message}".lower()
    return any(sign in text for sign in _PEER_LOST)
