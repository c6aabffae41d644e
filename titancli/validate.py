"""`titan validate`: every finding of a config at once, the plan it resolves to and, if asked, what a dry run says."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.errors import EXIT_RUN_FAILED, Finding, TitanError
from engine.planner.stack import STACKS, TITAN, Stack
from engine.rules import RULES, Report, check
from engine.sources import Loaded, load, preset_names
from titancli import report
from titancli.against import Against, other, say_against, unchanged
from titancli.plan_text import say_plan
from titancli.surroundings import Here, look_around

if TYPE_CHECKING:
    from engine.sources import Flag


@dataclass(frozen=True, slots=True)
class Told:
    """All that there is to tell: what the rules say, what is on this machine, and what it is compared with."""

    checked: Report
    here: Here | None
    compared: Against | None


def load_config(
    command: str, path: str | None, preset: str | None, flags: Sequence[Flag], *, flags_are_enough: bool = False
) -> Loaded:
    """The config that a command line names; TitanError where it names none, or a flag for a preset.

    `flags_are_enough`: keys given as flags are a config by themselves, over the defaults.
    """
    if path is None and preset is None and not (flags_are_enough and flags):
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


def validate(
    path: str | None,
    preset: str | None,
    flags: Sequence[Flag],
    *,
    stack: str,
    against: str | None = None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Shows findings and plan, as text or as one JSON object; returns the exit code.

    That is 0, 2 or 3, and 1 where a dry run failed. A config with errors is not run. `stack` names the
    implementation that the plan is made for, `against` another config to compare it with: without, what flags and the
    environment lie over.
    """
    asked = _stack(stack, dry_run=dry_run)
    loaded = load_config("validate", path, preset, flags, flags_are_enough=True)
    checked, here = check(loaded, stack=asked), None
    if asked is TITAN:
        # What another engine would read and write is not titan's to say.
        checked, here = look_around(loaded, checked)
    compared = unchanged(path, preset, loaded, checked, stack=asked) if against is None else other(against, stack=asked)
    told = Told(checked, here, compared)
    if dry_run and checked.ok:
        return _validate_by_running(loaded, told, as_json=as_json)
    if as_json:
        _write(told, {"dry_run": None} if dry_run else {})
        return checked.exit_code
    _say(told)
    _say_verdict(loaded, checked)
    _say_where_reasons_are(checked)
    return checked.exit_code


def _stack(name: str, *, dry_run: bool) -> Stack:
    """The stack of that name; TitanError for another name, and for a dry run of what titan cannot build."""
    stack = next((stack for stack in STACKS.values() if stack.name == name), None)
    if stack is None:
        near = difflib.get_close_matches(name.lower(), STACKS, n=1)
        fix = f"use one of {', '.join(STACKS)}" if not near else f"write {near[0]}; known are {', '.join(STACKS)}"
        raise TitanError(report.error("U112", f"there is no stack {name or 'without a name'}", fix))
    if dry_run and stack is not TITAN:
        message = f"a dry run builds titan's own engine, and --stack {name} asks about another"
        raise TitanError(report.error("U113", message, "leave out --dry-run or --stack"))
    return stack


def _validate_by_running(loaded: Loaded, told: Told, *, as_json: bool) -> int:
    from titancli.dry_run import judge, run, say

    checked = told.checked
    assert checked.plan is not None, "a config without errors has a plan"
    if not as_json:
        _say(told)
        mesh = checked.plan.mesh
        report.say(f"\ndry run: {mesh.pp} of {mesh.world_size} ranks are built and stepped, without GPUs", tint="faint")
    rows = run(loaded.config)
    found = [rows] if isinstance(rows, Finding) else judge(loaded, checked.plan, rows)
    after = replace(checked, findings=(*checked.findings, *found))
    if as_json:
        _write(replace(told, checked=after), {"dry_run": None if isinstance(rows, Finding) else rows})
    else:
        if not isinstance(rows, Finding):
            say(checked.plan, rows)
        report.say_findings(found)
        _say_verdict(loaded, after)
    failed = isinstance(rows, Finding) or any(row["error"] for row in rows)
    return EXIT_RUN_FAILED if failed else after.exit_code


def _write(told: Told, more: dict[str, Any]) -> None:
    values = {
        **told.checked.to_json(),
        "here": None if told.here is None else told.here.to_json(),
        "against": None if told.compared is None or told.checked.plan is None else told.compared.to_json(),
        **more,
    }
    sys.stdout.write(json.dumps(values, allow_nan=False) + "\n")


def _say(told: Told) -> None:
    checked, here = told.checked, told.here
    report.say_findings(checked.findings)
    if checked.plan is None:
        return
    say_plan(checked)
    if told.compared is not None:
        say_against(checked.plan, told.compared)
    if here is not None and here.rows:
        colour, width = report.takes_colour(sys.stdout), report.width_of(sys.stdout)
        sys.stdout.write("\n" + report.paint("on this machine", report.BOLD, colour) + "\n")
        for label, text in here.rows:
            report.say("\n".join(report.hanging(f"  {label:<14}", text, width)))


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


def _say_where_reasons_are(checked: Report) -> None:
    """One line that names the page of the first rule that is broken, where one is."""
    known = {rule.id for rule in RULES}
    rule = next((finding.rule for finding in checked.findings if finding.rule in known), None)
    if rule is not None:
        report.say(f"the reason behind a rule: titan explain-config {rule}", sys.stderr, tint="faint")
