"""`titan launch --preflight`: what every GPU and link reaches is measured by all ranks before anything is trained.

Knows how the ranks are started (as those of the run, by the same torchrun) and how their verdict is shown. Does not
measure nor judge (engine.preflight). `python -m titancli.launch.preflight RUN_FOLDER` shows the verdict of one that a
scheduler's job has run, and ends as it says.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import EXIT_HARDWARE, EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, EXIT_TERMINATED, Finding
from engine.preflight import assumed
from engine.preflight.judging import FILE, IN_WORDS, LINK_UNITS, amount
from titancli import figures, report
from titancli.launch.peers import Departure, Peers
from titancli.launch.processes import Processes
from titancli.launch.progress import quietly_say
from titancli.launch.supervise import Signals
from titancli.launch.torchrun import Command
from titancli.monitor.failure import failures_of
from titancli.monitor.follow import Launcher
from titancli.monitor.run_state import RunState
from titancli.rank_logs import TORCHRUN_LOG, logs_of_node, torchrun_logs

FOLDER = "preflight"
"""Where the logs of its ranks are, in the run folder."""
_TICK_S = 0.1
# Its own deadlines come to less than this, whatever hangs: they are for what they do not see.
MOST_S = 300.0
# Once there is a verdict, ranks have nothing left to do.
_END_S = 10.0
_LABELS = {
    assumed.BF16: "bfloat16",
    assumed.FP8: "float8",
    assumed.MEMORY: "memory",
    assumed.HOST: "from the host",
    "pair": "two ranks",
    "node": "all of a node",
    "nodes": "two nodes",
    "all": "all nodes",
}
_LABEL_WIDTH, _FIGURE_WIDTH = 15, 14


def preflight_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a run's torchrun command as those of its preflight: the same nodes and ranks, another module."""
    changed = [_log_dir(word) for word in words]
    assert changed[-2] == "engine", "torchrun starts the module engine on a run folder"
    return (*changed[:-2], "engine.preflight", changed[-1])


def _log_dir(word: str) -> str:
    name, _, folder = word.partition("=")
    if name != "--log-dir":
        return word
    before, _, after = folder.rpartition("/logs")
    return f"{name}={before}/{FOLDER}/logs{after}"


def preflight(
    run: Path,
    torchrun: Command,
    signals: Signals,
    *,
    node: int | None = None,
    others: Peers | None = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Measures before a run, says what was found, and gives 0 where it may start; else titan's exit code.

    No process of it is left when this returns. `node` is this machine's number where there are several, and `others`
    are the launchers there: nobody is measured together with a machine that is gone.
    """
    quietly_say("  preflight: measuring every GPU and link; it takes less than a minute", tint="faint")
    logs = logs_of_node(run / FOLDER, node)
    # Those of an earlier launch must not be taken for this one's.
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    (run / FILE).unlink(missing_ok=True)
    processes = Processes(replace(torchrun, words=preflight_words(torchrun.words)), environ, logs / TORCHRUN_LOG)
    try:
        gone = _wait(processes, signals, others, has_verdict=(run / FILE).is_file)
    finally:
        processes.end(at_once=signals.interrupts > 1)
    if signals.has_any:
        report.say("stopped in the preflight; nothing was trained", sys.stderr)
        return EXIT_INTERRUPTED if signals.interrupts else EXIT_TERMINATED
    return say_verdict(run) if gone is None else _say_gone(gone, run)


def _wait(
    processes: Processes, signals: Signals, others: Peers | None, *, has_verdict: Callable[[], bool]
) -> Departure | None:
    """Until the ranks have ended, are not to be waited for any longer, or somebody asks for the end.

    The machine that has ended before, which all others would wait for.
    """
    gone: Departure | None = None
    until_s = time.monotonic() + MOST_S
    is_told = False
    while processes.exit_code() is None and not signals.has_any and time.monotonic() < until_s:
        if not is_told and has_verdict():
            is_told, until_s = True, min(until_s, time.monotonic() + _END_S)
        if gone is None and others is not None and (gone := others.missed()) is not None:
            until_s = min(until_s, time.monotonic() + (0.0 if gone.is_orderly else _END_S))
        time.sleep(_TICK_S)
    return others.missed() if gone is None and others is not None else gone


def _say_gone(gone: Departure, run: Path) -> int:
    """Says which machine has ended, after what its ranks and this one's have found; gives the exit code."""
    if gone.is_orderly:
        report.say(f"node {gone.node} ({gone.host}) was stopped in the preflight; nothing was trained", sys.stderr)
        return gone.exit_code or EXIT_RUN_FAILED
    if read_verdict(run) is not None:
        say_verdict(run)
    report.say_findings([gone.finding()])
    report.say("the preflight was not passed; nothing was trained", sys.stderr, tint="bad")
    return EXIT_RUN_FAILED


def say_verdict(run: Path) -> int:
    """Says what a preflight found, or how it failed; gives the exit code."""
    verdict = read_verdict(run)
    if verdict is None:
        report.say_findings([_unheard(run)])
        return EXIT_RUN_FAILED
    width = report.width_of(sys.stdout)
    for line in table(verdict, width):
        quietly_say(line)
    findings = [Finding(**each) for each in verdict["findings"]]
    findings += [_failed(each, run) for each in verdict["failed"]]
    report.say_findings(findings)
    if verdict["ok"]:
        return EXIT_OK
    report.say("the preflight was not passed; nothing was trained", sys.stderr, tint="bad")
    return EXIT_RUN_FAILED if verdict["failed"] else EXIT_HARDWARE


def read_verdict(run: Path) -> dict[str, Any] | None:
    """What rank 0 has left in the run folder; None where there is nothing that can be read."""
    try:
        told = json.loads((run / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) and {"ok", "findings", "failed", "rates"} <= told.keys() else None


def table(verdict: Mapping[str, Any], width: int) -> list[str]:
    """Every rate that was measured: the least, the median, and what the plan assumes."""
    what = report.devices(verdict["gpu"], verdict["world_size"])
    lines = [f"preflight of {what} in {figures.duration(verdict['seconds'])}"]
    rows = {**verdict["rates"], **verdict["link_rates"]}
    if rows:
        lines.append(_row("", ("slowest", "median", "plan")))
    for name, rate in rows.items():
        units = IN_WORDS[name][1] if name in IN_WORDS else LINK_UNITS
        lines.append(_row(_LABELS[name], [_figure(rate[key], units) for key in ("least", "median", "assumed")]))
    return [line[:width].rstrip() for line in lines]


def _row(label: str, cells: Sequence[str]) -> str:
    return f"  {label.ljust(_LABEL_WIDTH)}" + "".join(cell.rjust(_FIGURE_WIDTH) for cell in cells)


def _figure(value: float | None, units: tuple[str, str]) -> str:
    return figures.NOT_KNOWN if value is None else amount(value, units)


def _failed(each: Mapping[str, Any], run: Path) -> Finding:
    """A rank or a link that did not answer, or not rightly."""
    fix = f"leave that GPU or node out, or see {run / FOLDER / 'logs'} for what it was at"
    text = each["text"]
    return report.error("H825", f"in the preflight, {text}", fix)


def _unheard(run: Path) -> Finding:
    """A preflight that came to no verdict: the rank that failed first, or torchrun's last words."""
    fix = f"see {run / FOLDER / 'logs'}, and launch again without --preflight where that is not the machine's fault"
    for failure in failures_of(run / FOLDER, RunState()):
        where = f"rank {failure.rank}" + (f" on {failure.host}" if failure.host else "")
        return report.error("H826", f"the preflight failed on {where}: {failure.type}: {failure.message}", fix)
    last = ""
    for log in torchrun_logs(run / FOLDER):
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
            last = lines[-1] if lines else last
    return report.error("H826", f"the preflight came to no end: {last or 'torchrun said nothing'}", fix)


def _in_a_job(run: Path) -> int:
    """Says what a preflight found that a scheduler has started; one that is not passed ends the run."""
    code = say_verdict(run)
    if code != EXIT_OK:
        with contextlib.suppress(OSError):
            replace(Launcher.this_process(), exit_code=code).write(run)
    return code


if __name__ == "__main__":
    sys.exit(_in_a_job(Path(sys.argv[1])))
