"""README's figures are those that are kept."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

from engine.rules import check
from engine.sources import Flag, load, split_flags
from titancli.plan_text import say_plan

ROOT = Path(__file__).parents[1]


def test_readme_states_the_planners_errors_as_they_are_kept() -> None:
    tables = json.loads((ROOT / "tests" / "bench" / "planner.json").read_text("utf-8"))
    kept = [
        f"| {name} | {table['summary']['rows']} | {table['summary']['mean_abs_pct']:.1f} | "
        f"{table['summary']['largest_abs_pct']:.1f} |"
        for name, table in tables.items()
        if "summary" in table
    ]
    told = (ROOT / "README.md").read_text("utf-8")
    assert kept
    assert [line for line in kept if line not in told] == [], "\n".join(["README's table should be:", *kept])


def test_readme_shows_what_validate_prints() -> None:
    flag = Flag("training.local_batch_size", "8", "--training.local_batch_size")
    printed = io.StringIO()
    say_plan(check(load(preset="fsdp-8b", flags=[flag], environ={})), printed)
    block = (ROOT / "README.md").read_text("utf-8").partition("--preset fsdp-8b --training.local_batch_size 8\n")[2]
    shown = [line.removeprefix("    ") for line in block.partition("\n\n")[0].splitlines() if line.strip() != "..."]
    assert shown[0] == "fit"
    lines = printed.getvalue().splitlines()
    start = lines.index("fit")
    assert shown == lines[start : start + len(shown)]


def test_every_preset_that_readme_launches_is_sound_and_fits() -> None:
    text = (ROOT / "README.md").read_text("utf-8").replace("\\\n", " ")
    commands = [shlex.split(line, comments=True) for line in text.splitlines() if "titan launch --preset" in line]
    assert len(commands) > 3
    for words in commands:
        rest, flags = split_flags(words[words.index("titan") + 1 :])
        report = check(load(preset=rest[rest.index("--preset") + 1], flags=flags, environ={}))
        assert report.ok, (words, [str(finding) for finding in report.findings])
