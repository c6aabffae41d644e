"""`python -m titancli.launch.begun RUN WHO`: the first words of a run that a scheduler starts again.

Knows what `titan launch` does when it goes on in a folder: logs of earlier processes are put aside, and the events say
that all ranks begin again. Does not start anything. WHO is the job, as the events name it. With `--leave-logs` the
logs stay where they are: other nodes may have begun to write there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engine.errors import EXIT_OK, TitanError
from titancli import report
from titancli.launch.kept import goes_on_after
from titancli.launch.restart import goes_on
from titancli.launch.run_folder import keep_logs, start_over
from titancli.monitor.follow import LAUNCHER_FILE


def begun(run: Path, who: str, *, leaves_logs: bool = False) -> int:
    """Makes the folder of a run that was stopped ready for another start; returns the exit code."""
    try:
        step = goes_on_after(run)
        if not leaves_logs:
            keep_logs(run)
        # How the last start has ended is not how this one does.
        (run / LAUNCHER_FILE).unlink(missing_ok=True)
        start_over(run, text := f"{who}: {goes_on(step)}", step=step)
    except TitanError as mistake:
        report.say_findings(mistake.findings)
        return mistake.exit_code
    except OSError as trouble:
        message = f"cannot write the run folder {run}: {(trouble.strerror or str(trouble)).lower()}"
        fix = "make room or set job.dump_folder to a folder that can be written"
        found = report.error("R107", message, fix, key="job.dump_folder")
        report.say_findings([found])
        return TitanError(found).exit_code
    report.say(text)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(begun(Path(sys.argv[1]), sys.argv[2], leaves_logs="--leave-logs" in sys.argv[3:]))
