"""Which sinks a rank has, and what those of a real run hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from gloo_pool import GlooPool
from prometheus_client.parser import text_string_to_metric_families
from synthetic import Rows, tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engine.config import Config
from engine.events import event_file, read_new
from engine.keys import with_values
from engine.loop import fit
from engine.planner.plan import plan
from engine.sinks import sinks_of

EACH = "{rank}-of-{run}.prom"
ALL: dict[str, Any] = {"metrics.enable_tensorboard": True, "metrics.enable_wandb": True}


def train(run: str, **values: Any) -> None:
    """One rank of a small run."""
    config = tiny(2, **values)
    resolved = plan(config)
    fit(config, resolved, run=Path(run), source=Rows(config, resolved, data_rank=dist.get_rank()))


@pytest.fixture(scope="module")
def run(gloo: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two ranks, with the files for Prometheus in the folder above."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    path = str(folder.parent / EACH)
    values = {"metrics__enable_tensorboard": True, "metrics__prometheus_file": path, "metrics__breakdown_freq": 0}
    gloo.run(2, train, run=str(folder), **values)
    return folder


@pytest.mark.world
def test_tensorboard_has_the_curve_of_the_events(run: Path) -> None:
    shown = EventAccumulator(str(run / "tensorboard"))
    shown.Reload()
    events = [event for event in read_new(event_file(run, 0))[0] if event["kind"] == "step"]
    assert [(each.step, each.value) for each in shown.Scalars("loss")] == [
        (event["step"], pytest.approx(event["loss"], rel=1e-6)) for event in events
    ]
    assert shown.Scalars("memory/host_rss_bytes")[-1].step == 5


@pytest.mark.world
def test_each_rank_has_its_file_for_prometheus(run: Path) -> None:
    texts = [(run.parent / f"{rank}-of-first.prom").read_text("utf-8") for rank in (0, 1)]
    found = [{family.name: family.samples[0].value for family in text_string_to_metric_families(it)} for it in texts]
    assert [(each["titan_step"], each["titan_up"], each["titan_exit_code"]) for each in found] == [(5, 0, 0)] * 2
    assert ["titan_loss" in each for each in found] == [True, False]


@pytest.mark.parametrize(
    ("rank", "path", "names"),
    [
        (0, None, ["TensorBoard", "Weights & Biases"]),
        (0, "titan.prom", ["TensorBoard", "Weights & Biases", "the file for Prometheus"]),
        (1, "titan.prom", []),
        (1, EACH, ["the file for Prometheus"]),
    ],
)
def test_rank_0_tells_of_the_run_and_others_of_themselves_where_they_have_a_file(
    rank: int, path: str | None, names: list[str], tmp_path: Path
) -> None:
    config = with_values(tiny(2), ALL | {"metrics.prometheus_file": path})
    assert [sink.name for sink in sinks_of(config, plan(config), run=tmp_path, rank=rank)] == names


def test_nothing_is_fed_where_it_is_not_asked_for_or_there_is_no_run_folder(tmp_path: Path) -> None:
    config = with_values(tiny(2), ALL)
    assert sinks_of(config, plan(config), run=None, rank=0) == ()
    assert sinks_of(Config(), plan(config), run=tmp_path, rank=0) == ()
