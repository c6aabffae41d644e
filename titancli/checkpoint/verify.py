"""`titan checkpoint verify`: whether checkpoints hold all of what they promise.

Knows how `python -m engine.checkpoint` is started and ended, and how its words are shown. Does not know what is looked
at (engine/checkpoint/whole), nor which run is meant (found).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from engine.checkpoint import places
from engine.checkpoint.committed import MANIFEST, is_committed, step_folder, step_to_load
from engine.errors import EXIT_OK, EXIT_RUN_FAILED, Finding, TitanError
from titancli import figures, report
from titancli.checkpoint.found import Found, find
from titancli.disk import decimal
from titancli.engine_process import engine_process

_MOST_SHOWN = 12
Examined: TypeAlias = dict[str, Any]
"""A checkpoint that was looked at: files, tensors, pieces, read_bytes, seconds, and faults (file, tensor, why)."""


def verify(
    name: str | None, *, dump_folder: str, step: int | None, values: bool, as_json: bool, every: bool = False
) -> int:
    """Reopens the newest checkpoint, that of `step`, or `every` one that is committed; 0 where all are whole, else 1.

    TitanError as `find`, and U198 where there is nothing to look at, or all of it was pruned meanwhile.
    """
    found = find(name, dump_folder)
    paths = [found.folder / each for each in asked_for(found, step, every=every)]
    rows: list[Examined] = []
    pruned: list[Path] = []
    with contextlib.closing(_examined(paths, values=values)) as looked:
        for path in paths:
            if values and report.is_screen(sys.stderr):
                # A large one takes minutes.
                report.say(f"reading all of {path}", sys.stderr, tint="faint")
            examined = next(looked)
            if examined["faults"] and not is_committed(path):
                # It was when they were listed: the run that saves here has pruned it since.
                pruned.append(path)
                continue
            rows.append({"name": path.name, "path": str(path), "whole": not examined["faults"]} | examined)
            if not as_json:
                _say(rows[-1], values=values)
    if not rows:
        message = f"{pruned[-1]} was deleted while it was looked at: its run keeps newer ones"
        raise TitanError(report.error("U198", message, "run it again, or with --step of one that is kept"))
    whole = all(row["whole"] for row in rows)
    if as_json:
        told = {"folder": str(found.folder), "whole": whole, "values": values, "checkpoints": rows}
        sys.stdout.write(json.dumps(told) + "\n")
    return EXIT_OK if whole else EXIT_RUN_FAILED


def asked_for(found: Found, step: int | None, *, every: bool) -> list[str]:
    """Names of the checkpoints that are looked at."""
    if step is not None:
        try:
            step_to_load(found.own, step)
        except TitanError as mistake:
            fix = "leave --step out for the newest, or see all with titan checkpoint ls"
            raise TitanError(*(_of_step(finding.message, step, fix) for finding in mistake.findings)) from mistake
        return [step_folder(step)]
    if found.only is not None:
        return [found.only]
    if found.own.newest is None:
        message = f"{found.folder} has no checkpoint that was saved to its end"
        raise TitanError(report.error("U198", message, "name a run that has one; titan checkpoint ls shows them"))
    return [step_folder(each) for each in (found.own.committed if every else found.own.committed[-1:])]


def _of_step(message: str, step: int, fix: str) -> Finding:
    return report.error("U198", message.replace(f"load_step = {step}", f"--step {step}"), fix)


def _examined(paths: Sequence[Path], *, values: bool) -> Generator[Examined, None, None]:
    """What the process with torch finds in each checkpoint, one after another; it never outlives this."""
    named = [os.path.abspath(path) if not places.is_remote(path) else str(path) for path in paths]
    with engine_process("engine.checkpoint") as process:
        # One that died at once says why below.
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps({"paths": named, "values": values}))
        for _ in paths:
            line = process.stdout.readline()
            if not line.endswith("\n"):
                message = f"the process that examines checkpoints {process.death}"
                fix = "run it again with more free memory; without --values it needs little"
                raise TitanError(report.error("R198", message, fix))
            yield json.loads(line)


# ---- for people ---------------------------------------------------------------------------------


def _say(row: Examined, *, values: bool) -> None:
    width, faults = report.width_of(sys.stdout), row["faults"]
    looked = f"{figures.many(row['files'], 'file')}, {row['tensors']:,} tensors in {row['pieces']:,} pieces"
    looked += f", {decimal(row['read_bytes'])} of values read" if values else ", values not read"
    verdict = "whole" if row["whole"] else f"damaged, {figures.many(len(faults), 'fault')}"
    text = f"{row['path']}: {verdict} ({looked}; {figures.duration(row['seconds'])})"
    for line in report.wrapped(text, width, indent=2):
        report.say(line, tint="good" if row["whole"] else "bad")
    for fault in faults[:_MOST_SHOWN]:
        of = f", {fault['tensor']}" if fault["tensor"] else ""
        for line in report.wrapped(f"  {fault['file']}{of}: {fault['why']}", width, indent=4):
            report.say(line)
    if len(faults) > _MOST_SHOWN:
        report.say(f"  and {len(faults) - _MOST_SHOWN:,} more: --json has them all")
    if any(fault["file"] == MANIFEST for fault in faults):
        report.say("  without its manifest nothing else of it was looked at")
