"""Where torchrun puts the output of each rank inside a run folder.

Knows `logs/<id>_<random>/attempt_<n>/<local rank>/`. On one machine a local rank is the rank; on several, each has
a folder `logs/node-<number>/` of its own, or (where a scheduler numbers them) each rank has put a link to its folder
into `logs/ranks/`. What an earlier launch or attempt has written is kept as it was in `logs/earlier-<n>/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TORCHRUN_LOG = "torchrun.log"
LAUNCH_LOG = "launch.log"
"""What a launcher without a terminal says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLogs:
    """The files of one rank in one attempt; a file need not be there yet."""

    rank: int
    folder: Path

    @property
    def stdout(self) -> Path:
        """What the rank printed."""
        return self.folder / "stdout.log"

    @property
    def stderr(self) -> Path:
        """Its warnings and errors."""
        return self.folder / "stderr.log"

    @property
    def error(self) -> Path:
        """The error that it recorded for torchrun, as JSON."""
        return self.folder / "error.json"


def logs_of_node(run: Path, node: int | None) -> Path:
    """Where torchrun and its ranks write on one of several machines; None is the only one."""
    return run / "logs" if node is None else run / "logs" / f"node-{node}"


def attempts(run: Path) -> int:
    """How many attempts have left logs or are about to: earlier launches and restarts, and the newest."""
    return 1 + sum(folder.is_dir() for folder in (run / "logs").glob("earlier-[0-9]*"))


def _logs(run: Path, attempt: int | None) -> Path:
    """The folder of the logs of an attempt, counted from 1; None is the newest."""
    return run / "logs" if attempt in (None, attempts(run)) else run / "logs" / f"earlier-{attempt}"


def launch_log(run: Path, node: int | None) -> Path:
    """What a launcher without a terminal says; `node` is the number of one that is a guest in the folder of another."""
    return run / "logs" / (LAUNCH_LOG if node is None else f"launch-node-{node}.log")


def launch_logs(run: Path) -> list[Path]:
    """What every launcher without a terminal has said, that of the run folder's own first."""
    guests = (run / "logs").glob("launch-node-*.log")
    logs = [launch_log(run, None), *sorted(guests, key=lambda log: (len(log.name), log.name))]
    return [log for log in logs if log.is_file()]


def torchrun_logs(run: Path, attempt: int | None = None) -> list[Path]:
    """What torchrun itself has written in an attempt, the newest one unless told, on each machine where it has."""
    logs = _logs(run, attempt)
    places = [logs, *sorted(logs.glob("node-*"), key=lambda folder: (len(folder.name), folder.name))]
    return [folder / TORCHRUN_LOG for folder in places if (folder / TORCHRUN_LOG).is_file()]


def rank_logs(run: Path, attempt: int | None = None) -> dict[int, RankLogs]:
    """The logs of every rank of an attempt, the newest one unless told, by rank."""
    logs = _logs(run, attempt)
    if nodes := {int(folder.name.removeprefix("node-")): _newest_in(folder) for folder in logs.glob("node-*[0-9]")}:
        return _over(nodes)
    return _ranks_in(logs / "ranks") or _newest_in(logs)


def _over(nodes: Mapping[int, Mapping[int, RankLogs]]) -> dict[int, RankLogs]:
    """The ranks of several machines, each of which has as many as any other, in the order of their numbers."""
    each = max(len(ranks) for ranks in nodes.values())
    found = {node * each + local: logs.folder for node in sorted(nodes) for local, logs in nodes[node].items()}
    return {rank: RankLogs(rank=rank, folder=folder) for rank, folder in found.items()}


def _newest_in(logs: Path) -> dict[int, RankLogs]:
    """The folders of the newest attempt of one torchrun, by local rank."""
    attempts = [folder for folder in logs.glob("*/attempt_*") if folder.is_dir()]
    if not attempts:
        return {}
    newest = max(attempts, key=lambda folder: (folder.stat().st_mtime, folder.name))
    return _ranks_in(newest)


def _ranks_in(folder: Path) -> dict[int, RankLogs]:
    """The folders of a folder whose names are numbers."""
    if not folder.is_dir():
        return {}
    ranks = sorted(int(each.name) for each in folder.iterdir() if each.is_dir() and each.name.isdigit())
    return {rank: RankLogs(rank=rank, folder=folder / str(rank)) for rank in ranks}


def text_of(path: Path, last_bytes: int) -> str:
    """The text at the end of a log; empty where there is none."""
    try:
        start = max(0, path.stat().st_size - last_bytes)
    except OSError:
        return ""
    return bytes_of(path, start).decode("utf-8", errors="replace")


def bytes_of(path: Path, start: int) -> bytes:
    """A log from a byte on; empty where there is nothing, or no log."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except OSError:
        return b""
