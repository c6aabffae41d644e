"""The job that Slurm made of a run: its number, kept in the run folder, and whether Slurm still has it.

Knows `sbatch` and `squeue`. Does not know what is in the script.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.errors import TitanError
from titancli import report
from titancli.launch.answers import Stopped, Unanswered, heard_out

FILE = "slurm.json"
_ANSWERS_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job by its number; `cluster` where it is not the one that Slurm's commands ask by themselves."""

    id: str
    cluster: str | None = None

    @classmethod
    def read(cls, run: Path) -> Job | None:
        """The job of a run; None where Slurm was not asked to start it."""
        try:
            kept = json.loads((run / FILE).read_text("utf-8"))
            return cls(str(kept["job_id"]), kept.get("cluster"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, run: Path) -> None:
        """Puts it into the run folder."""
        kept = {"job_id": self.id} | ({} if self.cluster is None else {"cluster": self.cluster})
        (run / FILE).write_text(json.dumps(kept) + "\n", "utf-8")

    def named(self) -> str:
        """It as Slurm's commands take it: its number, after the cluster where that has to be named."""
        return self.id if self.cluster is None else f"-M {shlex.quote(self.cluster)} {self.id}"

    def state(self) -> str | None:
        """Its state where it waits or runs, in Slurm's word; None where Slurm has no such job any more."""
        try:
            where = () if self.cluster is None else (f"--clusters={self.cluster}",)
            asked = _run("squeue", "--noheader", *where, f"--jobs={self.id}", "--format=%T")
        except (OSError, subprocess.TimeoutExpired):
            return "squeue cannot be asked here"
        # Slurm forgets a job some minutes after its end, and then calls its number invalid.
        if asked.returncode != 0 and "invalid job id" not in asked.stderr.lower():
            return "squeue does not answer"
        # Where a cluster is named, a line `CLUSTER: name` comes first.
        told = [line for line in asked.stdout.splitlines() if not line.startswith("CLUSTER:")]
        return " ".join(told).strip() or None


def require_sbatch() -> None:
    """TitanError where this machine cannot submit to Slurm."""
    if shutil.which("sbatch") is None:
        message = "there is no sbatch on this machine, so nothing can be submitted to Slurm"
        fix = "launch on a login node of the cluster, or print the script with --dry-run"
        raise TitanError(report.error("U190", message, fix, key="launch.scheduler"))


def _way_out(told: str) -> str:
    """What to do where sbatch fails with these words."""
    if re.search(r"configuration source|contact.* slurm|timed out|connection refused", told, re.IGNORECASE):
        return "launch on a machine where sinfo answers: this one does not reach Slurm's controller"
    return "set [launch.slurm] to what sinfo and sacctmgr show"


def submit(script: Path, name: str) -> Job:
    """Hands a script to Slurm; TitanError with Slurm's own words where it does not take it.

    Stopped where this process is asked to end meanwhile: the job is cancelled again, or named.
    """
    try:
        asked = heard_out(*words(script), within_s=_ANSWERS_WITHIN_S)
    except Unanswered as silence:
        if silence.stop_code is not None:
            report.say(_unknown(name), sys.stderr)
            raise Stopped(silence.stop_code) from None
        message = f"sbatch has not answered in {_ANSWERS_WITHIN_S:.0f} s"
        raise TitanError(report.error("U191", message, _unknown(name))) from None
    except OSError as trouble:
        message = f"sbatch cannot be started: {(trouble.strerror or str(trouble)).lower()}"
        raise TitanError(report.error("U191", message, "see what `sbatch --version` says")) from trouble
    if asked.exit_code != 0:
        told = " ".join(asked.err.replace("sbatch: error: ", "").split())
        message = f"Slurm does not take the job: {told or f'sbatch exited with {asked.exit_code}'}"
        raise TitanError(report.error("U191", message, _way_out(told)))
    # A site's own lines may come before.
    found = re.search(r"^(\d+)(?:;(\S+))?\s*\Z", asked.out, re.MULTILINE)
    if found is None:
        message = f"sbatch ended well and told no number of a job, but {' '.join(asked.out.split())!r}"
        raise TitanError(report.error("U191", message, _unknown(name)))
    job = Job(found[1], found[2])
    if asked.stop_code is not None:
        _take_back(job)
        raise Stopped(asked.stop_code)
    return job


def _take_back(job: Job) -> None:
    """Cancels a job that nobody waits for any more, and says whether that was done."""
    where = () if job.cluster is None else (f"--clusters={job.cluster}",)
    try:
        trouble = _run("scancel", *where, job.id).stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    done = f"asked to end: job {job.id} was submitted and is cancelled again"
    left = f"asked to end, and job {job.id} is in the queue: end it with scancel {job.named()} ({trouble})"
    report.say(left if trouble else done, sys.stderr)


def _unknown(name: str) -> str:
    return f"see squeue --me --name={name} whether Slurm took the job, end it with scancel, and launch again"


def words(script: Path) -> tuple[str, ...]:
    """The command that submits a script."""
    return ("sbatch", "--parsable", str(script))


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_ANSWERS_WITHIN_S,
        check=False,
    )
