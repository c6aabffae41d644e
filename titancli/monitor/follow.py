"""A run folder that is read while it grows: finding it, reading what is new, judging whether it lives.

Knows files, host names and process ids. Does not know what events mean (fold) or how they look
(panels). Whether processes live is judged only on the host that they run on.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import socket
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from engine.errors import Finding, TitanError
from engine.events import Event, event_file, read_ends
from titancli import report
from titancli.monitor.fold import fold
from titancli.monitor.reading import Reader
from titancli.monitor.run_state import RunState
from titancli.monitor.values import as_text

State = Literal["starting", "running", "finished", "failed", "interrupted", "dead"]
ENDED: frozenset[State] = frozenset({"finished", "failed", "interrupted", "dead"})
LAUNCHER_FILE = "launcher.json"
_LARGEST_PID = 2**31 - 1


def find_run(name: str | None, dump_folder: str) -> Path:
    """The folder of a run: given as a path, by its name, or the newest; TitanError where there is none."""
    runs = folder_of_runs(dump_folder)
    if name is None:
        newest = newest_run(runs)
        if newest is None:
            raise TitanError(
                _missing(f"there is no run in {dump_folder}", "start one with titan launch --preset quickstart")
            )
        return newest
    for folder in (Path(name), runs / name):
        # os.path asks without raising where a name is too long, or a folder on the way may not be entered.
        if os.path.isfile(folder / "config.toml") or os.path.isdir(folder / "events"):
            return folder
    names = [run.name for run in sorted(_runs(runs), key=_age, reverse=True)]
    known = difflib.get_close_matches(name, names, n=3) or names[:5]
    raise TitanError(
        _missing(
            f"there is no run {name}, neither as a folder nor in {dump_folder}",
            f"name one of {', '.join(known)}" if known else "start one with titan launch --preset quickstart",
        )
    )


def folder_of_runs(dump_folder: str) -> Path:
    """`job.dump_folder` as a path: `~` is a home folder there too."""
    return Path(os.path.expanduser(dump_folder))


def newest_run(runs: Path) -> Path | None:
    """The run of a dump folder that was started last."""
    return max(_runs(runs), key=_age, default=None)


def _runs(runs: Path) -> list[Path]:
    """Run folders; one that is being written has a name with a dot in front."""
    try:
        entries = list(runs.iterdir())
    except OSError:
        return []
    return [run for run in entries if not run.name.startswith(".") and os.path.isfile(run / "config.toml")]


def _age(run: Path) -> tuple[float, str]:
    try:
        return (run / "config.toml").stat().st_mtime, run.name
    except OSError:
        return 0.0, run.name


def _missing(message: str, fix: str) -> Finding:
    return report.error("U110", message, fix)


class Follower:
    """Reads the events of every rank of a run as they come, and keeps what they add up to.

    With `from_now`, what was written before does not count.
    """

    def __init__(self, run: Path, *, from_now: bool = False) -> None:
        self.run = run
        self.state = RunState()
        self._offsets: dict[Path, int] = {}
        if from_now:
            self._offsets = {path: read_ends(path)[1] for path in self._files()}

    def _files(self) -> list[Path]:
        return sorted((self.run / "events").glob("rank-*.jsonl"))

    def read(self) -> RunState:
        """Folds in what was written since the last call; files that cannot be read now are tried again."""
        self.state = fold(self.state, self._new())
        return self.state

    def _new(self) -> Iterator[Event]:
        """What is new, one rank after another: never all of it at once, for ranks are many and files are long."""
        files = self._files()
        for path in files:
            # Only rank 0 tells how the run went, and hundreds of others have the same to say.
            is_first = path.name == event_file(self.run, 0).name
            reader = Reader(path, self._offsets.get(path, 0), is_whole=is_first, of_files=len(files))
            with contextlib.suppress(OSError):
                yield from reader
            self._offsets[path] = reader.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What the launcher says of itself in the run folder: where it runs, and how the run ended."""

    pid: int
    host: str
    created: float
    exit_code: int | None = None
    namespace: str | None = None

    def write(self, run: Path) -> None:
        """Puts itself into the run folder, whole or not at all."""
        fields = asdict(self)
        partial = run / f".{LAUNCHER_FILE}.{self.pid}"
        try:
            partial.write_text(json.dumps(fields) + "\n", "utf-8")
            partial.replace(run / LAUNCHER_FILE)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def this_process(cls) -> Launcher:
        """The launcher that is running here and now."""
        import psutil

        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            created=psutil.Process().create_time(),
            namespace=_pid_namespace(),
        )

    @classmethod
    def read(cls, run: Path) -> Launcher | None:
        """The launcher of a run; None where there is none, or its file cannot be read."""
        return cls.read_file(run / LAUNCHER_FILE)

    @classmethod
    def read_file(cls, path: Path) -> Launcher | None:
        """The launcher that one file tells of."""
        match _json(path):
            case {
                "pid": int(pid),
                "host": str(host),
                "created": float(created),
                "exit_code": int() | None as exit_code,
                **more,
            }:
                return cls(
                    pid=pid,
                    host=host,
                    created=created,
                    exit_code=exit_code,
                    namespace=as_text(more.get("namespace")),
                )
            case _:
                return None

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None on another host, and in another container of this one."""
        if None not in (self.namespace, here := _pid_namespace()) and self.namespace != here:
            return None
        return _is_alive(self.pid, self.host, created=self.created)


def _pid_namespace() -> str | None:
    """What this process counts processes in, `pid:[4026531836]`: two containers may call themselves alike."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def judge(state: RunState, launcher: Launcher | None, *, holds: bool | None = None) -> State:
    """What has become of a run: by what its ranks and its launcher said last, else by whether they live.

    `holds`: whether a launcher of another machine still shows signs of life (signs), where somebody looked.
    """
    if launcher is not None and launcher.exit_code is not None:
        return {0: "finished", 130: "interrupted", 143: "interrupted"}.get(launcher.exit_code, "failed")  # type: ignore[return-value]
    alive = _lives(launcher, holds)
    if launcher is not None and alive and (state.last_time or 0.0) < launcher.created:
        return "starting"  # what was written is of an earlier launch
    first = state.ranks.get(0)
    if state.first_failure is not None and not alive:
        return "failed"  # a launcher that lives may start it again, and says itself how it ended
    if first is not None and first.has_ended and not alive:
        return _ending(first.reason_ended or "", first.exit_code)
    if alive is False and launcher is not None and launcher.is_alive is None:
        return "dead"  # its ranks were looked at too: what they write is a sign
    pids = [(rank.pid, rank.host) for rank in state.ranks.values() if not rank.has_ended and rank.pid and rank.host]
    processes = [_is_alive(pid, host) for pid, host in pids if pid is not None and host is not None]
    if launcher is not None:
        processes.append(alive)
    if processes and all(one is False for one in processes):
        return "dead"
    return "running" if state.ranks else "starting"


def is_over(state: State, launcher: Launcher | None, *, holds: bool | None = None) -> bool:
    """Whether nothing more is to come of a run: not while its launcher lives, which may start it again."""
    is_said = launcher is not None and launcher.exit_code is not None
    return state in ENDED and (is_said or not _lives(launcher, holds))


def _lives(launcher: Launcher | None, holds: bool | None) -> bool | None:
    if launcher is None:
        return None
    return holds if launcher.is_alive is None else launcher.is_alive


def _ending(reason: str, exit_code: int | None) -> State:
    if reason in ("interrupted", "terminated") or exit_code in (130, 143):
        return "interrupted"
    return "finished" if exit_code == 0 else "failed"


def _is_alive(pid: int, host: str, created: float | None = None) -> bool | None:
    """Whether a process lives; None where another host would have to say. A pid that was given anew is not it."""
    if host != socket.gethostname():
        return None
    if not 0 < pid <= _LARGEST_PID:
        return False
    import psutil

    try:
        process = psutil.Process(pid)
        if created is not None and abs(process.create_time() - created) > 1.0:
            return False
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def read_config(run: Path) -> dict[str, Any]:
    """The run's config as plain tables; empty where it cannot be read."""
    try:
        return tomllib.loads((run / "config.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def read_plan(run: Path) -> dict[str, Any]:
    """The run's plan as a plain object; empty where it cannot be read."""
    return _json(run / "plan.json")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def silence_s(state: RunState, now: float | None = None) -> float | None:
    """Seconds since any rank wrote anything; None before the first event."""
    return None if state.last_time is None else max(0.0, (time.time() if now is None else now) - state.last_time)
