"""The job that Slurm made of a run: its number, kept in the run folder, and whether Slurm still has it.

Knows `sbatch` and `squeue`. Does not know what is in the script.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from engine.errors import TitanError
from titancli import report

FILE = "slurm.json"
_ANSWERS_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job by its number."""

    id: str

    @classmethod
    def read(cls, run: Path) -> Job | None:
        """The job of a run; None where Slurm was not asked to start it."""
        try:
            return cls(str(json.loads((run / FILE).read_text("utf-8"))["job_id"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, run: Path) -> None:
        """Puts it into the run folder."""
        (run / FILE).write_text(json.dumps({"job_id": self.id}) + "\n", "utf-8")

    def state(self) -> str | None:
        """Its state where it waits or runs, in Slurm's word; None where Slurm has no such job any more."""
        try:
            asked = _run("squeue", "--noheader", f"--jobs={self.id}", "--format=%T")
        except (OSError, subprocess.TimeoutExpired):
            return "squeue cannot be asked here"
        # Slurm forgets a job some minutes after its end, and then calls its number invalid.
        if asked.returncode != 0 and "invalid job id" not in asked.stderr.lower():
            return "squeue does not answer"
        return asked.stdout.strip() or None


def require_sbatch() -> None:
    """TitanError where this machine cannot submit to Slurm."""
    if shutil.which("sbatch") is None:
        message = "there is no sbatch on this machine, so nothing can be submitted to Slurm"
        fix = "launch on a login node of the cluster, or print the script with --dry-run"
        raise TitanError(report.error("U190", message, fix, key="launch.scheduler"))


def submit(script: Path) -> Job:
    """Hands a script to Slurm; TitanError with Slurm's own words where it does not take it."""
    try:
        asked = _run(*words(script))
    except subprocess.TimeoutExpired:
        message = f"sbatch has not answered in {_ANSWERS_WITHIN_S:.0f} s"
        raise TitanError(
            report.error("U191", message, "see squeue whether it took the job, and launch again")
        ) from None
    if asked.returncode != 0:
        told = " ".join(asked.stderr.replace("sbatch: error: ", "").split())
        message = f"Slurm does not take the job: {told or f'sbatch exited with {asked.returncode}'}"
        raise TitanError(report.error("U191", message, "set [launch.slurm] to what sinfo and sacctmgr show"))
    return Job(asked.stdout.strip().partition(";")[0])


def words(script: Path) -> tuple[str, ...]:
    """The command that submits a script."""
    return ("sbatch", "--parsable", str(script))


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=False
    )
