"""README's figures are those that are kept."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest
from torchtitan_recipes import RECIPES

from engine.rules import check
from engine.sources import Flag, load, split_flags
from titancli.dispatch import run_command_line
from titancli.pages.pictures import PICTURES
from titancli.plan_text import say_plan

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
# Command lines below which README shows what they print; `...` stands for lines that are left out.
SHOWN = {
    line: shown
    for line, shown in re.findall(r"^    \$ (titan [^\n]*)\n((?:    [^$\n][^\n]*\n)+)", README, re.MULTILINE)
    if not line.endswith("\\")
}
# What lines write, by the line that writes it.
MADE = {words[words.index("--output") + 1]: line for line in SHOWN if "--output" in (words := line.split())}
FILES = {
    "run.toml": next(picture for picture in PICTURES if picture.name == "validate-errors").files["run.toml"],
    "llama3_8b.toml": RECIPES["llama3_8b"].text,
    "data.toml": README.partition("`data.toml`\n\n```toml\n")[2].partition("```")[0],
}
# What these name in turn.
BESIDE = {"data.toml": {"corpus.jsonl": README.partition("```json\n")[2].partition("```")[0]}}


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


def test_readme_states_how_fast_data_is_read_as_it_is_kept() -> None:
    steps = json.loads((ROOT / "tests" / "bench" / "loader.json").read_text("utf-8"))["steps"]
    waits = json.loads((ROOT / "tests" / "device" / "data_wait_h200.json").read_text("utf-8"))
    assert "more than a thousand times as fast as an 8B model" in README
    assert min(row["times_consumed"] for row in steps.values()) > 1000
    assert "waits for its data 0.2 % of its time" in README
    assert round(max(waits[name]["data_wait_pct"] for name in ("bins_0", "lines_0")), 1) == 0.2


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


def test_readme_shows_what_the_commands_of_a_first_look_print() -> None:
    commands = [line.split()[1] for line in SHOWN]
    assert {"init", "validate", "explain-config", "presets", "import"} <= set(commands)


@pytest.mark.parametrize("line", SHOWN)
def test_what_readme_shows_is_what_is_printed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    words = shlex.split(line, comments=True)[1:]
    for name in {*FILES} & {*words}:
        if name != words[words.index("--output") + 1 if "--output" in words else 0]:
            for file, text in {name: FILES[name], **BESIDE.get(name, {})}.items():
                (tmp_path / file).write_text(text, "utf-8")
    for word in {*MADE} & {*words} - {*FILES}:
        if MADE[word] != line:
            run_command_line(shlex.split(MADE[word])[1:])
    capsys.readouterr()
    run_command_line(words)
    told = capsys.readouterr()
    printed = list(filter(str.strip, (told.out + told.err).splitlines()))
    for part in re.split(r"(?m)^    \.\.\.$", SHOWN[line]):
        lines = [each.removeprefix("    ") for each in part.splitlines() if each.strip()]
        starts = [at for at in range(len(printed)) if printed[at : at + len(lines)] == lines]
        assert starts, lines
        printed = printed[starts[0] + len(lines) :]


@pytest.mark.parametrize("place", sorted({match[1] for match in re.finditer(r"\]\(([\w./-]+)\)", README)}))
def test_every_link_of_readme_leads_to_a_file(place: str) -> None:
    assert (ROOT / place).is_file()
