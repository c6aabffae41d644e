"""Runs of Weights & Biases, really written where it is offline, as its own records tell of them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from engine.config import Config
from engine.events import Event
from engine.keys import with_values
from engine.planner.plan import plan
from engine.sinks.wandb import WandbSink, resolved

wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed: its sink is not tried")

TIME_S = 1_800_000_000.5
CONFIG: dict[str, Any] = {"training": {"steps": 20}}


def told(kind: str, **fields: Any) -> Event:
    """One event."""
    return {"time": TIME_S, "kind": kind, **fields}


FIRST = (
    told("run_started", resumed_from=None),
    told("memory", ooms=0),
    told("step", step=10, loss=4.5, breakdown={"exposed_comm_s": {"tp": 0.25}}),
    told("step", step=20, loss=3.5),
    told("warning", message="take care"),
    told("run_ended", reason="OSError: no", exit_code=1),
)
AGAIN = (
    told("run_started", resumed_from=10),
    told("step", step=20, loss=3.25),
    told("run_ended", reason="completed", exit_code=0),
)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The records of a run that failed and of its resumption, both offline."""
    run = tmp_path_factory.mktemp("runs") / "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB__DISABLE_STATS", "true")
        patch.delenv("WANDB_PROJECT", raising=False)
        for events in (FIRST, AGAIN):
            sink = WandbSink(run, CONFIG)
            sink.load()
            sink.take(events)
            sink.close()
        wandb.teardown()
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)
    return [records(file) for file in files]


def records(file: Path) -> list[Any]:
    """The records of an offline run: a log of LevelDB in blocks of 32 KiB, behind a head of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole, found = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            found.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return found


def of_kind(start: list[Any], kind: str) -> list[Any]:
    """The records of one kind."""
    return [getattr(record, kind) for record in start if record.WhichOneof("record_type") == kind]


def rows(start: list[Any]) -> list[dict[str, Any]]:
    """What was logged, without W&B's own figures."""
    found = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
        for history in of_kind(start, "history")
    ]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]


def test_figures_are_logged_with_their_step(starts: list[list[Any]]) -> None:
    first = {"step": 10, "loss": 4.5, "breakdown/exposed_comm_s/tp": 0.25, "memory/ooms": 0}
    assert rows(starts[0]) == [first, {"step": 20, "loss": 3.5}]


def test_step_is_the_x_of_every_curve(starts: list[list[Any]]) -> None:
    said = [(each.name, each.glob_name, each.step_metric) for each in of_kind(starts[0], "metric")]
    assert said[:2] == [("step", "", ""), ("", "*", "step")]


def test_a_resumed_run_goes_on_in_the_same_one_with_steps_done_anew(starts: list[list[Any]]) -> None:
    ids = [{record.run_id for record in of_kind(start, "run")} for start in starts]
    assert (len(ids), ids[0]) == (2, ids[1])
    assert rows(starts[1]) == [{"step": 20, "loss": 3.25}]


def test_the_run_has_titans_name_project_and_config(starts: list[list[Any]]) -> None:
    run = of_kind(starts[0], "run")[0]
    values = {each.key: json.loads(each.value_json) for each in run.config.update}
    assert (run.display_name, run.project, values["training"]) == ("first", "titan", {"steps": 20})


def test_warnings_are_alerts_and_the_end_is_the_runs_own(starts: list[list[Any]]) -> None:
    assert [(alert.text, alert.level) for alert in of_kind(starts[0], "alert")] == [("take care", "WARN")]
    assert [of_kind(start, "exit")[0].exit_code for start in starts] == [1, 0]


def test_the_config_has_the_numbers_of_its_plan() -> None:
    config = with_values(Config(), {"cluster.gpu": "cpu", "cluster.gpus_per_node": 2})
    values = resolved(config, plan(config))
    assert values["parallelism"]["data_parallel_shard_degree"] == 2
    assert values["training"]["global_batch_size"] == 2
    assert json.loads(json.dumps(values)) == values


@pytest.mark.parametrize(
    ("failure", "way"),
    [
        (ImportError("no"), "python -m pip install 'titan-train[wandb]', or set metrics.enable_wandb to false"),
        (wandb.errors.UsageError("no key"), "run wandb login on the machine of rank 0, or set WANDB_API_KEY"),
        (wandb.errors.CommError("no host"), "see to the way from the machine of rank 0 to W&B"),
    ],
)
def test_a_failure_has_its_way_out(failure: Exception, way: str, tmp_path: Path) -> None:
    assert WandbSink(tmp_path, {}).advice(failure).startswith(way)
