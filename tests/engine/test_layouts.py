"""The same numbers in every layout, from 1D to 4D: each row of the table of tests/world/parity.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from gloo_pool import GlooPool
from parity import LAYOUTS, OPTIMIZERS, Layout, measure

SCHEDULE = "parallelism__pipeline_parallel_schedule"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the figures and weights of one process are kept for all rows."""
    return tmp_path_factory.mktemp("parity")


@pytest.mark.world
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name.replace(" ", "_"))
def test_c29_every_layout_trains_as_one_process_does(
    layout: Layout, optimizer: str, gloo: GlooPool, folder: Path
) -> None:
    # Eight stages are the most that a schedule makes here; the others need no more than two layers on each of two.
    layers = 8 if SCHEDULE in layout.values else 4
    values = {"model__shape__n_layers": layers, "training__steps": 3}
    found = measure(gloo, layout, optimizer, folder=folder, values=values)
    # Initial weights are the same bits; then float32 sums are taken in another order in each layout.
    assert found.before == 0.0
    assert found.loss <= 1e-5
    assert found.norm <= 1e-5
    assert found.after <= 1e-5
    assert found.largest_share == 1.0
    assert len(found.names) == layers * 9 + 3
