"""The exact torchrun command of a run, and the environment it starts in.

Knows torchrun's options and variables, the same under every scheduler. Reads no config beyond what it is given,
starts nothing.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from titancli.rank_logs import logs_of_node

if TYPE_CHECKING:
    from titancli.launch.meeting import Meeting

# Set by torchrun or another launcher for its own workers: one left over would be half obeyed.
FOREIGN = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PYTHON_EXEC"})
FOREIGN_PREFIXES = ("GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "TORCH_ELASTIC_", "PET_", "TITAN_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command with the changes to the environment that belong to it."""

    words: tuple[str, ...]
    removed: tuple[str, ...]
    added: Mapping[str, str]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of the process."""
        kept = {name: value for name, value in environ.items() if name not in self.removed}
        return kept | dict(self.added)

    def __str__(self) -> str:
        """The command as a shell takes it, on one line."""
        changes = [word for name in self.removed for word in ("-u", name)]
        changes += [f"{name}={value}" for name, value in self.added.items()]
        return shlex.join(("env", *changes, *self.words))


def command(
    run: Path,
    *,
    processes: int,
    threads: int,
    grace_s: float,
    environ: Mapping[str, str],
    meeting: Meeting | None = None,
    timeout_s: float = 300.0,
) -> Command:
    """What starts the workers of a run on this machine, of which there may be several that meet within `timeout_s`.

    `threads` is each process's share of the cores; a number that the person has set goes before it.
    """
    folder = run.absolute()
    added = environment_of_workers(grace_s)
    if "OMP_NUM_THREADS" not in environ:
        added["OMP_NUM_THREADS"] = str(threads)
    # Gloo would take the address of the host's name, which often is one that only this machine can reach (127.0.1.1).
    # NCCL looks for itself: its variable would also move the data of a run to the interface that launchers talk over.
    if meeting is not None and meeting.interface is not None and "GLOO_SOCKET_IFNAME" not in environ:
        added["GLOO_SOCKET_IFNAME"] = meeting.interface
    words = torchrun_words(
        sys.executable,
        str(folder),
        nodes=1 if meeting is None else meeting.nodes,
        processes=processes,
        meeting=_here_alone(run.name) if meeting is None else _at(meeting, run.name, timeout_s),
        logs=str(logs_of_node(folder, None if meeting is None or meeting.nodes == 1 else meeting.rank)),
    )
    return Command(words=words, removed=foreign(environ), added=added)


def _here_alone(name: str) -> tuple[str, ...]:
    """Port 0 is any free port, and the address is one that needs no name server."""
    return ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", f"--rdzv-id={name}")


def _at(meeting: Meeting, name: str, timeout_s: float) -> tuple[str, ...]:
    """Several machines, each with the ranks that belong to its number.

    c10d would sort them by the text of their addresses, ignore --node-rank, and have that one keep the store which
    finds the endpoint's name to be its own; the static rendezvous takes all three from what is said.
    """
    return (
        "--rdzv-backend=static",
        f"--rdzv-endpoint={meeting.endpoint}",
        f"--node-rank={meeting.rank}",
        f"--rdzv-id={name}",
        f"--rdzv-conf=timeout={math.ceil(timeout_s)}",
    )


def environment_of_workers(grace_s: float) -> dict[str, str]:
    """The variables that every worker is started with, wherever it is."""
    return {
        # Without it `-m engine` would take a folder `engine` of the current directory for the library.
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        # torchrun kills workers after 30 s, whatever time they were promised.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, math.ceil(grace_s))),
    }


def torchrun_words(
    python: str,
    folder: str,
    *,
    nodes: int,
    processes: int,
    meeting: Sequence[str],
    logs: str = "",
    shows_output: bool = False,
) -> tuple[str, ...]:
    """torchrun for the processes of one node of a run; `meeting` says how nodes find each other.

    The output of ranks goes to files in `logs`, that of the run folder if empty; with `shows_output` to torchrun's own
    as well.
    """
    return (
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--nproc-per-node={processes}",
        *meeting,
        "--max-restarts=0",
        f"--log-dir={logs or f'{folder}/logs'}",
        "--tee=3" if shows_output else "--redirects=3",
        "-m",
        "engine",
        folder,
    )


def in_lines(words: Sequence[str]) -> list[str]:
    """Words that are ready for a shell, as one command on lines of one option or module each."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def foreign(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables of the environment that another launcher, or titan's own config, has put there."""
    return tuple(sorted(name for name in environ if name in FOREIGN or name.startswith(FOREIGN_PREFIXES)))
