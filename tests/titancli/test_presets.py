"""`titan presets` from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def test_json_has_model_gpus_and_layout_of_every_preset(titan: Callable[..., Any]) -> None:
    ran = titan("presets", "--json")
    rows = {row["name"]: row for row in json.loads(ran.out)}
    assert (ran.code, ran.err) == (0, "")
    assert {name: (row["model"], row["gpus"], row["layout"]) for name, row in rows.items()} == {
        "quickstart": ("llama3 debugmodel", 2, "FSDP 2"),
        "fsdp-8b": ("llama3 8B", 8, "FSDP 8"),
        "2d-70b": ("llama3 70B", 256, "FSDP 32 x TP 8"),
        "3d-405b": ("llama3 405B", 512, "FSDP 8 x TP 8 x PP 8"),
        "4d-405b-long": ("llama3 405B", 512, "FSDP 2 x CP 4 x TP 8 x PP 8"),
    }
    assert rows["fsdp-8b"]["parameters"] == 8_030_261_248


def test_figures_that_nobody_knows_are_null(titan: Callable[..., Any]) -> None:
    for row in json.loads(titan("presets", "--json").out):
        speeds = {value for name, value in row["predicted"].items() if name != "peak_bytes"}
        assert speeds | set(row["verified"].values()) == {None}
        assert row["predicted"]["peak_bytes"] > 0


def test_list_is_for_people_and_ends_with_what_to_type(titan: Callable[..., Any]) -> None:
    text = titan("presets").out
    assert text.startswith("quickstart\n")
    assert "predicted n/a, verified n/a" in text
    assert "titan launch --preset NAME" in text.splitlines()[-1]


def test_preset_is_listed_as_shipped_whatever_the_environment_says(titan: Callable[..., Any]) -> None:
    told = titan("presets", "--json", TITAN_MODEL__FLAVOR="nonsense")
    assert told.code == 0
    assert {row["name"] for row in json.loads(told.out)} >= {"quickstart", "3d-405b"}
