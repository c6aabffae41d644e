"""The page of all keys."""

from __future__ import annotations

from engine.keys import field_types
from titancli.pages.keys import page


def test_every_key_has_a_row_under_its_section() -> None:
    found: list[str] = []
    section = ""
    for line in page().splitlines():
        if line.startswith("## ["):
            section = line[4:-1]
        elif line.startswith("| `"):
            found.append(f"{section}.{line.split('`')[1]}")
    assert sorted(found) == sorted(field_types())


def test_row_says_what_the_key_takes_and_which_rules_judge_it() -> None:
    row = next(line for line in page().splitlines() if line.startswith("| `local_batch_size`"))
    assert row.startswith(
        '| `local_batch_size` | a whole number of at least 1, or "auto" | `1` | Sequences of one data rank'
    )
    assert "[P115](rules.md#p115)" in row
