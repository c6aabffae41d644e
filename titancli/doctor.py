"""`titan doctor`: what this machine is, whether it can do the work and, if asked, how fast it is.

Knows how `python -m engine.measure` is asked and how its answers are shown and kept. Does not know what is enough
(fitness) nor how a rate is measured.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.calibration import RATES, Calibration, CalibrationError, find, read, usual_path, write
from engine.cards import Driver, driver
from engine.config import Job
from engine.errors import EXIT_HARDWARE, EXIT_OK, EXIT_RUN_FAILED, TitanError
from engine.hardware import GPUS, Machine, kind_of, this_machine
from engine.machine import Limits, limits, processor
from titancli import figures, report
from titancli.engine_process import engine_process
from titancli.fitness import Check, checks

_SIGNS = {"well": ("ok", "good"), "doubtful": ("?", ""), "wrong": ("no", "bad")}
# More than a calibration takes.
_FILE_BYTES = 4096
_IN_WORDS = {
    "bf16_tflops": ("bfloat16 products", "TFLOP/s"),
    "fp8_tflops": ("float8 products", "TFLOP/s"),
    "fp32_tflops": ("float32 products", "TFLOP/s"),
    "attention_tflops": ("attention", "TFLOP/s"),
    "hbm_tbyte_per_s": ("memory", "TB/s"),
    "nvlink_gbyte_per_s": ("links in the node", "GB/s"),
}


def doctor(*, measure: bool, output: str | None, as_json: bool) -> int:
    """Shows all checks and, if asked, measures; gives 0 where the machine can do the work, 3 where it cannot."""
    if output is not None and not measure:
        message = "--output names the file of a calibration, and nothing is measured"
        raise TitanError(report.error("U114", message, "add --measure, or leave out --output"))
    here, gpus, room = this_machine(), driver(), limits(Path(Job().dump_folder))
    kind = kind_of(gpus.cards[0].name, gpus.cards[0].memory_bytes) if gpus.cards else "cpu"
    path = usual_path(kind or "") if output is None else Path(output).expanduser()
    if measure:
        _check_place(path)
    about, trouble = _ask_torch()
    found = list(checks(here, gpus, room, about, trouble))
    if kind is not None:
        found.append(_kept(kind))
    fit = all(check.state != "wrong" for check in found)
    if not as_json:
        _say_checks(found, fit=fit)
    measured = None
    if measure and about is not None and kind is not None:
        measured = _calibrate(kind, about, gpus, path, say=not as_json)
    if as_json:
        _write(found, here, gpus, room, about, _in_force(kind) if measured is None else measured)
    return EXIT_OK if fit else EXIT_HARDWARE


def _calibrate(kind: str, about: dict[str, Any], gpus: Driver, path: Path, *, say: bool) -> Calibration:
    """Measures, and keeps what was found."""
    if say:
        report.say("\nmeasuring; it takes less than a minute", tint="faint")
    rates: dict[str, float] = {}
    for line in _lines("rates"):
        if "rate" in line:
            rates[line["rate"]] = float(f"{line['value']:.5g}")
            if say:
                _say_rate(kind, line["rate"], line["value"])
        elif "trouble" in line and "torch" not in line:
            report.say(f"  links in the node were not measured: {line['trouble']}", sys.stderr)
    versions = {name: about[name] for name in ("torch", "cuda", "nccl") if about[name] is not None}
    found = Calibration(
        gpu=kind,
        gpu_name=gpus.cards[0].name if gpus.cards else processor(),
        host=platform.node(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions | ({"driver": gpus.version} if gpus.version else {}),
        sustained=rates,
        path=str(path),
    )
    try:
        write(found, path)
    except OSError as trouble:
        raise _unwritable(path, trouble) from None
    if say:
        use = f'plans for {kind} use it from now on; cluster.calibration = "none" leaves it out'
        if path != usual_path(kind):
            use = f'plans use it with cluster.calibration = "{path}"'
        report.say(f"\nkept in {path}: {use}")
    return found


def _check_place(path: Path) -> None:
    """Makes the folder of a calibration; TitanError where it cannot be kept there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # Without a buffer, whose rest would be written again on closing, and fail again before the file is removed.
        with tempfile.NamedTemporaryFile(dir=path.parent, buffering=0) as probe:
            probe.write(bytes(_FILE_BYTES))
    except OSError as trouble:
        raise _unwritable(path, trouble) from None


def _unwritable(path: Path, trouble: OSError) -> TitanError:
    reason = (trouble.strerror or str(trouble)).lower()
    fix = "name a file that can be written with --output"
    return TitanError(report.error("U115", f"cannot write {path}: {reason}", fix))


def _ask_torch() -> tuple[dict[str, Any] | None, str]:
    """What torch says of itself; None, and why, where it cannot be used."""
    try:
        (about,) = _lines("about")
    except MeasuringFailed as failed:
        return None, failed.last_line
    return about, ""


class MeasuringFailed(TitanError):
    """The process that has torch ended with an error, of which `last_line` is the last line."""

    def __init__(self, last_line: str) -> None:
        fix = "see titan doctor for what is wrong here"
        super().__init__(report.error("B803", f"measuring failed: {last_line}", fix))
        self.last_line = last_line

    @property
    def exit_code(self) -> int:
        """What failed is the work, not what was asked for."""
        return EXIT_RUN_FAILED


def _lines(what: str) -> Iterator[dict[str, Any]]:
    """The objects that `python -m engine.measure` writes, as they come; MeasuringFailed where it fails."""
    with engine_process("engine.measure", what, environ={}) as process:
        process.stdin.close()
        for line in process.stdout:
            yield json.loads(line)
        if process.popen.wait() != 0:
            raise MeasuringFailed(process.last_words or f"it exited with {process.popen.returncode}")


def _in_force(kind: str | None) -> Calibration | None:
    """The calibration that plans for this machine would use; None where there is none, or it is damaged."""
    path = None if kind is None else usual_path(kind)
    if path is None or not path.is_file():
        return None
    try:
        return read(path)
    except CalibrationError:
        return None


def _kept(kind: str) -> Check:
    """The calibration that plans for this machine use: a damaged one stops each of them."""
    path = usual_path(kind)
    if not path.is_file():
        return Check(name="calibration", state="well", found="none; --measure finds how fast this machine is")
    try:
        found = find("auto", kind, host=platform.node())
    except CalibrationError as trouble:
        fix = f"measure anew: titan doctor --measure, or remove {path}"
        return Check(name="calibration", state="doubtful", found=trouble.message, fix=fix)
    if found is None:
        other = f"{path} was measured on another machine, and is left out"
        return Check(name="calibration", state="well", found=other)
    return Check(name="calibration", state="well", found=f"{path}, measured {found.date}")


def _say_checks(found: list[Check], *, fit: bool) -> None:
    columns, width = report.width_of(sys.stdout), max(len(check.name) for check in found)
    for check in found:
        sign, tint = _SIGNS[check.state]
        lines = report.hanging(f"{sign:>2}  {check.name.ljust(width)}  ", check.found, columns)
        for line in lines:
            report.say(line, tint="" if check.state == "well" else tint)
        if check.fix:
            for line in report.hanging(f"    {' ' * width}  fix: ", check.fix, columns):
                report.say(line)
    if fit:
        report.say("\nok: this machine can do the work", tint="good")
    else:
        report.say("\nthis machine cannot do the work", sys.stderr, tint="bad")


def _say_rate(kind: str, name: str, value: float) -> None:
    what, unit = _IN_WORDS[name]
    text = f"  {what.ljust(18)} {value:8.4g} {unit}"
    field, size = RATES[name]
    published = getattr(GPUS[kind], field.removeprefix("sustained_"), None) if kind in GPUS else None
    if published is not None:
        text += f", {figures.percent(100 * value * size / published)} of the data sheet's {published / size:.4g}"
    report.say(text)


def _write(
    found: list[Check],
    here: Machine,
    gpus: Driver,
    room: Limits,
    about: dict[str, Any] | None,
    calibration: Calibration | None,
) -> None:
    """One JSON object: `ok`, every check, and what they were judged by."""
    told = {
        "ok": all(check.state != "wrong" for check in found),
        "checks": [asdict(check) for check in found],
        "cpus": here.cpus,
        "memory_bytes": here.memory_bytes,
        "driver": asdict(gpus),
        "limits": asdict(room),
        "torch": about,
        "calibration": None if calibration is None else asdict(calibration),
    }
    sys.stdout.write(json.dumps(told, allow_nan=False) + "\n")
