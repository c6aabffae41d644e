"""What a manifest says of the run that wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from resuming import train
from synthetic import tiny

from engine.checkpoint.manifest import SCHEMA, Manifest, manifest_of
from engine.planner.plan import plan


def manifest() -> Manifest:
    config = tiny(checkpoint__enable=True, training__seq_len=16)
    return manifest_of(config, plan(config), step=3, samples=24, updates=3, data={"crc32": 7}, versions={})


def test_a_manifest_has_layout_schema_config_horizon_random_states_and_position() -> None:
    written = manifest().to_json()
    assert (written["schema"], len(written["config_sha256"])) == (SCHEMA, 64)
    assert written["layout"]["mesh"] == {"pp": 1, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1}
    assert (written["lr_horizon"]["steps"], written["lr_horizon"]["decay_type"]) == (5, "linear")
    assert (written["step"], written["samples"]) == (3, 24)
    assert written["data"] == {"seq_len": 16, "shuffle_seed": 0, "crc32": 7}
    assert written["random"] == {"generators": ["cpu"], "ranks": 1}


def test_every_field_is_said_in_json_that_reads_again() -> None:
    written = manifest().to_json()
    assert json.loads(json.dumps(written)) == written


def test_a_manifest_says_when_it_was_committed(tmp_path: Path) -> None:
    train({"training__steps": 1}, str(tmp_path))
    checkpoint = tmp_path / "checkpoints" / "step-1"
    written = json.loads((checkpoint / "manifest.json").read_bytes())
    assert written["committed_s"] == pytest.approx((checkpoint / "manifest.json").stat().st_mtime, abs=2.0)
    assert list(written["crc32"]) == [".metadata"]
