"""README's figures are those that are kept."""

from __future__ import annotations

import json
from pathlib import Path

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
