"""The file for Prometheus, as its own parser reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from engine.events import Event
from engine.sinks.prometheus import PrometheusSink, file_of, is_of_each_rank

Told = Callable[..., Event]
Look = Callable[..., dict[str, Metric]]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """What stands in the file of a rank after events."""

    def looked(*events: Event, rank: int = 0, run: str = "first") -> dict[str, Metric]:
        file = tmp_path / "new" / "titan.prom"
        PrometheusSink(file, run=run, rank=rank, steps=100).take(events)
        assert [path.name for path in file.parent.iterdir()] == ["titan.prom"]
        return {family.name: family for family in text_string_to_metric_families(file.read_text("utf-8"))}

    return looked


def value(families: dict[str, Metric], name: str) -> float:
    """The one value of a name."""
    (sample,) = families[name].samples
    return float(sample.value)


def test_figures_are_in_prometheus_units_with_help_and_type(look: Look, started: Told, stepped: Told) -> None:
    found = look(started(), stepped(7, 2.5, mfu_pct=57.0))
    assert value(found, "titan_mfu_ratio") == 0.57
    assert value(found, "titan_step_seconds") == 0.51
    assert (value(found, "titan_step"), value(found, "titan_steps")) == (7, 100)
    assert all(family.documentation and family.type in ("gauge", "counter") for family in found.values())


def test_labels_say_run_rank_host_and_gpu(look: Look, started: Told, stepped: Told) -> None:
    run = 'a "quoted"\\run'
    (sample,) = look(started(gpu={"name": "H200", "uuid": "GPU-1"}), stepped(7, 2.5), run=run)["titan_loss"].samples
    assert sample.labels.keys() == {"run", "rank", "host", "gpu"}
    assert (sample.labels["run"], sample.labels["rank"], sample.labels["gpu"]) == (run, "0", "GPU-1")


def test_no_figure_carries_a_time_and_one_says_how_old_they_are(look: Look, stepped: Told) -> None:
    found = look(stepped(7, 2.5))
    assert {sample.timestamp for family in found.values() for sample in family.samples} == {None}
    assert value(found, "titan_told_timestamp_seconds") == 1_800_000_000.5


def test_meters_of_a_gpu_have_names_of_their_own_and_null_ones_none(look: Look, told: Told) -> None:
    found = look(told("gpu", uuid="GPU-1", sm_pct=50, power_w=700.5, pcie_rx_bytes_per_s=9, tensor_pct=None))
    names = {name for name in found if name.startswith("titan_gpu")}
    assert names == {"titan_gpu_sm_ratio", "titan_gpu_power_watts", "titan_gpu_pcie_rx_bytes_per_second"}


def test_what_is_not_known_any_more_is_not_told_any_more(look: Look, told: Told) -> None:
    assert "titan_gpu_sm_ratio" not in look(told("gpu", sm_pct=50, power_w=1), told("gpu", sm_pct=None, power_w=1))


def test_a_breakdown_stays_until_the_next_step_with_a_profile(look: Look, stepped: Told) -> None:
    parts = {"data_s": 0.1, "compute_s": 0.2, "exposed_comm_s": {"tp": 0.3}, "other_s": 0.0, "profiled_s": 0.7}
    found = look(stepped(50, 2.5, breakdown=parts), stepped(60, 2.25))
    told = {
        (sample.labels["part"], sample.labels.get("axis")): sample.value
        for sample in found["titan_breakdown_seconds"].samples
    }
    assert told == {("data", None): 0.1, ("compute", None): 0.2, ("exposed_comm", "tp"): 0.3, ("other", None): 0.0}
    assert value(found, "titan_profiled_step_seconds") == 0.7
    assert value(found, "titan_loss") == 2.25


def test_another_rank_tells_of_itself_and_not_of_the_run(look: Look, told: Told, stepped: Told) -> None:
    found = look(told("memory", host_rss_bytes=5), stepped(7, 2.5), rank=1)
    assert {"titan_step", "titan_step_seconds", "titan_memory_host_rss_bytes", "titan_up"} <= found.keys()
    assert not {"titan_loss", "titan_steps", "titan_grad_norm", "titan_tokens_per_second_per_gpu"} & found.keys()


def test_the_newest_committed_checkpoint_is_told(look: Look, told: Told) -> None:
    committed = told("checkpoint", step=20, path="there", seconds=1.5, bytes=9, state="committed")
    begun = told("checkpoint", step=40, path="there", seconds=None, bytes=None, state="begun")
    found = look(committed, begun)
    assert [value(found, f"titan_checkpoint_{name}") for name in ("step", "seconds", "bytes")] == [20, 1.5, 9]


def test_warnings_are_counted_and_the_end_is_told(look: Look, told: Told) -> None:
    assert value(look(told("warning", message="take care")), "titan_up") == 1
    found = look(told("warning", message="take care"), told("run_ended", reason="no", exit_code=1))
    assert [value(found, f"titan_{name}") for name in ("warnings", "up", "exit_code")] == [1, 0, 1]
    assert found["titan_warnings"].type == "counter"


def test_a_file_is_named_by_run_and_rank() -> None:
    assert file_of("/there/{run}-{rank}.prom", run="first", rank=3) == Path("/there/first-3.prom")
    assert [is_of_each_rank(path) for path in ("/there/{run}.prom", "/there/{rank}.prom")] == [False, True]
