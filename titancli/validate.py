"""`titan validate`: every finding of a config at once, and the plan it resolves to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import TitanError
from engine.rules import Report, check
from engine.sources import Loaded, load, preset_names
from titancli import report
from titancli.corpus import with_tokenizer

if TYPE_CHECKING:
    from engine.sources import Flag


def load_config(command: str, path: str | None, preset: str | None, flags: Sequence[Flag]) -> Loaded:
    """The config that a command line names; TitanError where it names none, or a flag for a preset."""
    if path is None and preset is None:
        raise TitanError(
            report.error(
                "U103",
                f"titan {command} needs a config: a TOML file, or a preset",
                f"give a path, or --preset with one of {', '.join(preset_names())}",
            )
        )
    if preset is not None and (not preset or preset.startswith("-")):
        message = f"--preset needs a name, and {preset or 'nothing'} is given"
        raise TitanError(report.error("U105", message, f"give one of {', '.join(preset_names())}"))
    return load(path, preset=preset, flags=flags)


def validate(path: str | None, preset: str | None, flags: Sequence[Flag], *, as_json: bool) -> int:
    """Shows findings and plan, as text or as one JSON object; returns the exit code (0, 2 or 3)."""
    loaded = load_config("validate", path, preset, flags)
    checked = with_tokenizer(check(loaded), loaded)
    if as_json:
        sys.stdout.write(json.dumps(checked.to_json(), allow_nan=False) + "\n")
        return checked.exit_code
    report.say_findings(checked.findings)
    if checked.plan is not None:
        report.say_plan(checked.plan, checked.settings)
    _say_verdict(loaded, checked)
    return checked.exit_code


def _say_verdict(loaded: Loaded, checked: Report) -> None:
    errors = sum(finding.severity == "error" for finding in checked.findings)
    warnings = len(checked.findings) - errors
    counts = ", ".join(
        f"{count} {word}{'s' if count != 1 else ''}"
        for count, word in ((errors, "error"), (warnings, "warning"))
        if count
    )
    if errors:
        report.say(f"{loaded.stem}: {counts}", sys.stderr, tint="bad")
    else:
        report.say(f"\nok: {loaded.stem} is sound" + (f" ({counts})" if counts else ""), tint="good")
