"""`titan presets` from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
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


def test_json_predicts_every_preset_and_claims_no_measurement(titan: Callable[..., Any]) -> None:
    for row in json.loads(titan("presets", "--json").out):
        predicted = row["predicted"]
        assert set(row["verified"].values()) == {None}
        assert row["verified"].keys() == predicted.keys()
        assert predicted["peak_bytes"] > 0
        known = {name: value is not None for name, value in predicted.items() if name != "peak_bytes"}
        assert set(known.values()) == {row["gpu"] != "cpu"}


def test_json_has_what_was_published_and_who_says_so(titan: Callable[..., Any]) -> None:
    rows = {row["name"]: row["published"] for row in json.loads(titan("presets", "--json").out)}
    assert rows["quickstart"] is None
    del rows["quickstart"]
    found = {name: (run["tokens_per_s_per_gpu"], run["reserved_bytes"], run["engine"]) for name, run in rows.items()}
    assert found == {
        "fsdp-8b": (8532, round(76.8 * 2**30), "torchtitan"),
        "2d-70b": (876, round(67.6 * 2**30), "torchtitan"),
        "3d-405b": (128, round(72.7 * 2**30), "torchtitan"),
        "4d-405b-long": (31, round(77.1 * 2**30), "torchtitan"),
    }
    assert all(run["source"] and run["predicted"]["tokens_per_s_per_gpu"] for run in rows.values())


def test_list_is_for_people_and_ends_with_what_to_type(titan: Callable[..., Any]) -> None:
    text = titan("presets").out
    assert text.startswith("quickstart\n")
    assert "tokens/s/process n/a" in text
    assert " ".join(text.split()).count("verified n/a") == 5
    assert "titan launch --preset NAME" in text.splitlines()[-1]


def test_preset_is_listed_as_shipped_whatever_the_environment_says(titan: Callable[..., Any]) -> None:
    told = titan("presets", "--json", TITAN_MODEL__FLAVOR="nonsense")
    assert told.code == 0
    assert {row["name"] for row in json.loads(told.out)} >= {"quickstart", "3d-405b"}


def test_a_damaged_calibration_is_told_and_left_out_of_the_list(titan: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "titan" / "calibration" / "cpu.toml"
    file.parent.mkdir(parents=True)
    file.write_text("form = ")
    ran = titan("presets", "--json", XDG_CONFIG_HOME=str(tmp_path))
    assert ran.code == 0
    assert [preset["name"] for preset in json.loads(ran.out)][:2] == ["quickstart", "fsdp-8b"]
    assert ran.err.count("warning[C801]") == 1
