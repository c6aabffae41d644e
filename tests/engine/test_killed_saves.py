"""A run that is killed while it saves loses no committed step, and goes on from the newest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gloo_pool import GlooPool
from killed import kill_and_resume
from parity import Layout


def arguments(mode: str) -> dict[str, Any]:
    """Two FSDP ranks that save after each of five steps."""
    keys = {"training__steps": 5, "checkpoint__interval": 1, "checkpoint__keep_latest_k": 1}
    return Layout(name="", degrees={"dp": 2}).arguments("AdamW") | keys | {"checkpoint__async_mode": mode}


# 30 moments in each mode: tests/bench/bench_kills.py.
@pytest.mark.world
@pytest.mark.parametrize("mode", ["disabled", "async_with_pinned_mem"])
@pytest.mark.parametrize(("save", "after_s"), [(1, 0.0), (2, 0.02), (3, 0.06)])
def test_c32_a_run_killed_in_a_save_goes_on_from_the_newest_committed_step(
    mode: str, save: int, after_s: float, gloo: GlooPool, tmp_path: Path
) -> None:
    trial = kill_and_resume(gloo, arguments(mode), tmp_path, save=save, after_s=after_s)
    assert trial.resumed_from == max(trial.committed, default=None)
    assert (trial.resumed_from or 0) >= save - 1
    assert trial.last_step == 5
