"""The newest figures of a run as a file that Prometheus' node exporter reads (its textfile collector).

Knows the text format, the names and units that Prometheus has for figures (base units: seconds, bytes, ratios), and
which of them are the run's: those stand in rank 0's file alone. Replaces the file as a whole, so that none is read half
written; figures carry no time, as that collector refuses them: `titan_told_timestamp_seconds` says how old they are.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from engine.events import Event
from engine.rules.sinks import PLACEHOLDERS
from engine.sinks.scalars import scalars_of

_PREFIX = "titan_"
# Ends of titan's names, and Prometheus' unit with what makes it of titan's.
_UNITS = (
    ("_bytes_per_s", "_bytes_per_second", 1),
    ("_pct", "_ratio", 0.01),
    ("_s", "_seconds", 1),
    ("_w", "_watts", 1),
)
_COUNTERS = ("memory/alloc_retries", "memory/ooms", "warnings")
_OF_THE_RUN = re.compile(
    r"(loss|grad_norm|lr|tokens|slots|tokens_per_s_per_gpu|mfu_pct|steps|checkpoint/.*|validation/.*)"
)
_RENAMED = {
    "lr": "learning_rate",
    "tokens_per_s_per_gpu": "tokens_per_second_per_gpu",
    # Of one step, and no part of it.
    "breakdown/profiled_s": "profiled_step_s",
}
_HELP = {
    "up": "1 while the run goes on, 0 once it has ended.",
    "exit_code": "Exit code with which the run has ended.",
    "told_timestamp_seconds": "When the newest of these figures was told, in seconds since 1970.",
    "step": "Newest step that was reported.",
    "steps": "Steps of the whole run.",
    "warnings_total": "Warnings since the run was last started.",
    "loss": "Mean loss over the valid tokens of the newest reported step, over all ranks.",
    "grad_norm": "Norm of the whole gradient before clipping.",
    "learning_rate": "Learning rate of the newest reported step.",
    "tokens": "Valid tokens of one step, over all ranks.",
    "slots": "Tokens of one step with padding, over all ranks.",
    "step_seconds": "Mean time of a step since the report before.",
    "tokens_per_second_per_gpu": "Valid tokens a second and GPU since the report before.",
    "mfu_ratio": "Model FLOPs of a second over the peak of the GPUs.",
    "breakdown_seconds": "Where the time of a step goes, by part; exposed communication by mesh axis.",
    "profiled_step_seconds": "Time of the one step that the breakdown was measured in.",
    "memory_active_bytes": "Memory of live tensors on the GPU.",
    "memory_reserved_bytes": "Memory that torch's allocator holds on the GPU.",
    "memory_peak_active_bytes": "Most memory of live tensors since the process began.",
    "memory_peak_reserved_bytes": "Most memory that torch's allocator has held since the process began.",
    "memory_alloc_retries_total": "Times that torch's allocator gave everything back and tried again.",
    "memory_ooms_total": "Times that memory ran out.",
    "memory_host_rss_bytes": "Resident memory of the process on the host.",
    "checkpoint_step": "Step of the newest committed checkpoint.",
    "checkpoint_seconds": "Time that saving the newest checkpoint took.",
    "checkpoint_bytes": "Size of the newest checkpoint.",
}


def is_of_each_rank(path: str) -> bool:
    """Whether a path names a file for each rank."""
    return "{rank}" in path


def file_of(path: str, *, run: str, rank: int) -> Path:
    """The file of one rank of a run."""
    values = dict(zip(PLACEHOLDERS, (run, str(rank)), strict=True))
    return Path(os.path.expanduser(re.sub(r"\{(\w+)\}", lambda found: values[found[1]], path)))


class PrometheusSink:
    """Keeps one file as new as the newest event."""

    key, name = "metrics.prometheus_file", "the file for Prometheus"

    def __init__(self, file: Path, *, run: str, rank: int, steps: int) -> None:
        self._file, self._is_first = file, rank == 0
        self._labels = {"run": run, "rank": str(rank), "host": socket.gethostname()}
        self._values: dict[str, dict[str, float]] = {"": {"up": 1.0, "steps": steps, "warnings": 0}}
        self._is_profiled = False

    def load(self) -> None:
        """Nothing."""

    def take(self, events: Sequence[Event]) -> None:
        """Writes the file anew, as it is after the last of these events; OSError where that cannot be."""
        for event in events:
            self._update(event)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        # The collector reads what ends in .prom.
        partial = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            partial.write_text(self._text(), "utf-8")
            partial.replace(self._file)
        finally:
            partial.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing: the file stays, and says that the run has ended."""

    def advice(self, failure: BaseException) -> str:  # noqa: ARG002 - whatever it was, the disk did not take it
        """What to do about a failure."""
        return f"see to it that {self._file} can be written, or set {self.key} to another path"

    def _update(self, event: Event) -> None:
        kind, own = str(event["kind"]), self._values[""]
        own["told_timestamp_s"] = event["time"]
        match kind:
            case "run_started":
                self._labels["gpu"] = (event.get("gpu") or {}).get("uuid") or ""
            case "warning":
                own["warnings"] += 1
            case "run_ended":
                own |= {"up": 0.0, "exit_code": event["exit_code"]}
            case "checkpoint" if event.get("state") != "committed":
                return
            case "checkpoint":
                own["checkpoint/step"] = event["step"]
            case "step":
                own["step"] = event["step"]
        # Of each kind the newest event counts: what is not known any more is not told any more.
        found = scalars_of(event)
        if kind == "step":
            self._take_breakdown({name: found.pop(name) for name in list(found) if name.startswith("breakdown/")})
        if found:
            self._values[kind] = found

    def _take_breakdown(self, parts: dict[str, float]) -> None:
        """Steps with a profile are few, and what the newest of them says stays until there is another."""
        is_profiled = "breakdown/compute_s" in parts
        if is_profiled or not self._is_profiled:
            self._values["breakdown"], self._is_profiled = parts, is_profiled

    def _text(self) -> str:
        """The file: HELP and TYPE of every name, then its values."""
        names: dict[str, list[str]] = {}
        kinds: dict[str, str] = {}
        for scalar, value in self._known():
            name, labels, factor = _named(scalar)
            names.setdefault(name, []).append(_sample(name, self._labels | labels, value * factor))
            kinds[name] = "counter" if scalar in _COUNTERS else "gauge"
        lines = [
            line
            for name in sorted(names)
            for line in (f"# HELP {name} {_help(name)}", f"# TYPE {name} {kinds[name]}", *names[name])
        ]
        return "\n".join(lines) + "\n"

    def _known(self) -> Iterator[tuple[str, float]]:
        for values in self._values.values():
            for scalar, value in values.items():
                if self._is_first or not _OF_THE_RUN.fullmatch(scalar):
                    yield scalar, value


def _named(scalar: str) -> tuple[str, dict[str, str], float]:
    """Prometheus' name of a number, the labels of its own, and the factor that makes its unit Prometheus'."""
    if scalar.startswith("breakdown/") and scalar not in _RENAMED:
        part, _, axis = scalar.removeprefix("breakdown/").partition("/")
        labels = {"part": part.removesuffix("_s")} | ({"axis": axis} if axis else {})
        return f"{_PREFIX}breakdown_seconds", labels, 1
    name = re.sub(r"[^a-zA-Z0-9_]", "_", _RENAMED.get(scalar, scalar))
    if scalar in _COUNTERS:
        return f"{_PREFIX}{name}_total", {}, 1
    for end, unit, factor in _UNITS:
        if name.endswith(end):
            return f"{_PREFIX}{name.removesuffix(end)}{unit}", {}, factor
    return f"{_PREFIX}{name}", {}, 1


def _help(name: str) -> str:
    known = name.removeprefix(_PREFIX)
    return _HELP.get(known, f"{known.replace('_', ' ')}, as the events of the run have it.")


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items() if text)
    return f"{name}{{{inside}}} {value if isinstance(value, int) else format(value, '.15g')}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
