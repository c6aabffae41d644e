"""`titan schema` from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.schema import json_schema


def test_it_prints_the_schema_and_nothing_else(titan: Callable[..., Any]) -> None:
    ran = titan("schema")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == json_schema()


def test_it_writes_a_file_and_never_over_one(titan: Callable[..., Any], tmp_path: Path) -> None:
    ran = titan("schema", "--output", "titan.schema.json")
    assert (ran.code, ran.out) == (0, "written: titan.schema.json\n")
    assert json.loads((tmp_path / "titan.schema.json").read_text("utf-8")) == json_schema()
    (tmp_path / "titan.schema.json").write_text("mine")
    assert titan("schema", "--output", "titan.schema.json").err.startswith("error[U124]: titan.schema.json is there")
    ran = titan("schema", "--output", "titan.schema.json", "--force")
    assert ran.out.endswith("kept: what was there before, in titan.schema.json.old\n")
