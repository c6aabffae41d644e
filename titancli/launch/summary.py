"""What is said when a run is over: how it went, or which rank failed first and why.

Knows words. The figures come from the events and the plan; what they do not hold is `n/a`.
"""

from __future__ import annotations

import shlex
import shutil
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, TitanError
from engine.planner.plan import Plan
from titancli import figures, report
from titancli.launch import kept
from titancli.launch.memory_words import lines as shortage_lines
from titancli.launch.memory_words import shortage_of
from titancli.launch.memory_words import way_out as more_room
from titancli.launch.supervise import Ending
from titancli.launch.ways_out import way_out
from titancli.monitor.run_state import Failure, Rank, RunState, follows, is_told_elsewhere
from titancli.rank_logs import rank_logs

# What a run that did all its steps gives as its reason.
COMPLETED = "completed"
# How a run may end without having failed, by its exit code.
STOPPED_WELL = {EXIT_OK: "done", EXIT_INTERRUPTED: "interrupted", EXIT_TERMINATED: "stopped by a signal"}
_MOST_SECONDARY = 3
_MOST_MESSAGE_LINES = 8
# A frame of a stack may be two lines.
_MOST_STACK_LINES = 14
_LONGEST_SHORTAGE = 200
_LONGEST_LINE = 400
# Less than this, and not even an event can be written.
_LEAST_FREE_BYTES = 16 * 1024


def summary(ending: Ending, plan: Plan, run: Path, *, steps: int, goes_on: bool = False) -> str:
    """The lines at the end of a run that finished or was stopped; `goes_on`: nobody has to start it again."""
    state = ending.state
    each = "process" if plan.gpu == "cpu" else "GPU"
    done = f"{state.step} of {steps} steps" if state.step is not None else "no step"
    took = "in" if ending.exit_code == EXIT_OK else "logged after"
    head = f"{STOPPED_WELL[ending.exit_code]}: {done} {took} {figures.duration(ending.seconds)}"
    reason = state.ranks[0].reason_ended if 0 in state.ranks else None
    early = ending.exit_code == EXIT_OK and reason not in (None, COMPLETED)
    rows = (
        *((("ended early", reason),) if early else ()),
        ("loss", f"{figures.loss(state.first_loss)} -> {figures.loss(state.loss)}"),
        *_validated(state),
        ("speed", _speed(state, plan.gpu)),
        ("peak memory", _memory(state, plan, each)),
        *_saved(run, ending.exit_code, goes_on=goes_on),
        ("run folder", str(run)),
        ("next", f"titan monitor {named(run)}; titan logs {named(run)}"),
    )
    return "\n".join((head, *(f"  {label:<12} {text}" for label, text in rows)))


def _validated(state: RunState) -> list[tuple[str, str]]:
    """The loss over held-out text, where there is any."""
    if state.validation_step is None:
        return []
    return [("validation", f"{figures.loss(state.validation_loss)} after step {state.validation_step:,}")]


def _saved(run: Path, exit_code: int, *, goes_on: bool) -> list[tuple[str, str]]:
    """What is kept of a run, and of one that was stopped how it is gone on with, where it does not by itself."""
    if not kept.saves(run):
        return [] if exit_code == EXIT_OK else [("saved", "nothing, as checkpoint.enable is false")]
    step, harm = _kept(run)
    saved = "nothing yet: no checkpoint is committed" if step is None else f"after step {step}"
    again = "start again" if step is None else "go on with"
    if harm:
        saved, again = f"nothing that can be loaded: {harm}", "once mended"
    return [("saved", saved), *([(again, kept.go_on(run))] if exit_code != EXIT_OK and not goes_on else [])]


def _kept(run: Path) -> tuple[int | None, str]:
    """The step that the run goes on after, None where none was saved, and what is wrong where none can be loaded."""
    try:
        return kept.goes_on_after(run), ""
    except TitanError as mistake:
        return None, "; ".join(finding.message for finding in mistake.findings)


def part_summary(ending: Ending, run: Path) -> str:
    """The same where rank 0 tells of the run on another machine's disk."""
    head = f"{STOPPED_WELL[ending.exit_code]}: this node's part, after {figures.duration(ending.seconds)}"
    return f"{head}; node 0 tells of steps and loss\n  run folder   {run}"


def _speed(state: RunState, gpu: str) -> str:
    """`1,000 tokens/s/GPU`, or that it is not known: then without a unit."""
    speed = median_speed(state)
    if speed is None:
        return figures.rate(None, "no step after the first was logged")
    return f"{figures.rate(speed)} {report.speed_unit(gpu)} (median without step 1)"


def median_speed(state: RunState) -> float | None:
    """Tokens per second and GPU in the middle of the logged steps, without the first, which warms up."""
    return statistics.median(state.speeds) if state.speeds else None


def cause_outside(ending: Ending, run: Path) -> str:
    """What ended a run from outside of its ranks, which then cannot tell it themselves; empty where nothing did."""
    if ending.killed_by is not None:
        return (
            f"error[R204]: torchrun, the parent of all ranks, was killed by {ending.killed_by} from outside\n"
            "  fix: look in the system's log for who did it, the out-of-memory killer for one"
        )
    if ending.elsewhere:
        return ending.elsewhere
    try:
        free_bytes = shutil.disk_usage(run).free
    except OSError:
        return ""
    if free_bytes >= _LEAST_FREE_BYTES:
        return ""
    return f"error[R205]: the disk that holds {run} is full: ranks cannot write what they do\n  fix: make room there"


def failure_text(
    failures: Sequence[Failure],
    run: Path,
    *,
    torchrun_tail: str,
    outside: str = "",
    ranks: Mapping[int, Rank] | None = None,
    plan: Plan | None = None,
) -> str:
    """The last lines of a failed run: the cause with the way to its log, and then what only followed.

    `outside` is a cause that no rank can tell; it counts where no rank has another. `ranks` and `plan` are what is
    known of the ranks and was planned for them.
    """
    if outside and all(is_told_elsewhere(failure) for failure in failures):
        return "\n".join((outside, *_go_on(run), *_others(failures)))
    if not failures:
        tail = textwrap.indent(torchrun_tail, "  | ") or "  it wrote nothing"
        head = f"error[R201]: the run failed, and no rank said why; the end of torchrun's own log:\n{tail}"
        return "\n".join((head, *_go_on(run)))
    first, *others = failures
    lines = [f"error[R202]: rank {first.rank} failed first: {_message(first)}"]
    short = None if first.ran_out is None or plan is None else shortage_of(first.rank, first.ran_out, plan)
    if short is not None:
        lines += [f"  {label:<10} {text}" for label, text in shortage_lines(short)]
    if first.place and first.type != "TitanError":
        lines.append(f"  at {first.place}")
    logs = rank_logs(run).get(first.rank)
    if logs is not None:
        lines.append(f"  --> {logs.stderr}")
    fix = way_out(first, (ranks or {}).get(first.rank)) if short is None else more_room(short, run)
    lines.append(f"  fix: {fix}; its whole log: titan logs {named(run)} --rank {first.rank}")
    return "\n".join((*lines, *_go_on(run), *_others(others)))


def _go_on(run: Path) -> list[str]:
    """How a run that failed is gone on with; nothing where it keeps no checkpoints."""
    if not kept.saves(run):
        return []
    step, harm = _kept(run)
    if harm:
        return [f"  saved: nothing that can be loaded: {harm}; go on once that is mended with: {kept.go_on(run)}"]
    if step is None:
        return [f"  saved: no checkpoint is committed; start it again with: {kept.go_on(run)}"]
    return [f"  saved: newest checkpoint: step {step}; go on with: {kept.go_on(run)}"]


def _others(others: Sequence[Failure]) -> list[str]:
    """One line for each of the first ranks that failed after the cause."""
    lines: list[str] = []
    for other in others[:_MOST_SECONDARY]:
        kind = "secondary" if follows(other) else "also failed"
        message = (other.message.splitlines() or [""])[0]
        lines.append(f"{kind}: rank {other.rank}: {textwrap.shorten(f'{other.type}: {message}', 160)}")
    if len(others) > _MOST_SECONDARY:
        lines.append(f"and {len(others) - _MOST_SECONDARY} more ranks after it")
    return lines


def named(run: Path) -> str:
    """A run as the other commands take it: its name where they would look for it, else its folder."""
    return shlex.quote(run.name if run.parent == Path("runs") else str(run))


def _message(failure: Failure) -> str:
    """Type and text; the mistakes of a person that the engine found carry their own form."""
    if failure.ran_out is not None:
        # Its figures follow, and CUDA's own sentence about them is long.
        return textwrap.shorten(f"{failure.type}: {failure.message}", _LONGEST_SHORTAGE)
    most = _MOST_STACK_LINES if failure.type == "StuckRank" else _MOST_MESSAGE_LINES
    lines = failure.message.splitlines() or [""]
    short = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in lines[:most]]
    cut = [*short, *(["..."] if len(lines) > most else [])]
    head = cut[0] if failure.type == "TitanError" else f"{failure.type}: {cut[0]}".removesuffix(": ")
    return "\n".join((head, *(f"  {line}" for line in cut[1:])))


def _memory(state: RunState, plan: Plan, each: str) -> str:
    peak = max((rank.peak_bytes for rank in state.ranks.values() if rank.peak_bytes is not None), default=None)
    exact = f"weights, gradients and optimizer by plan: {figures.memory(plan.memory.static_bytes)}"
    return f"{figures.memory(peak, 'not measured')} a {each}; {exact}"
