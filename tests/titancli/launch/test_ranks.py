"""The table of ranks, hosts and GPUs: before a run, and against what its workers say."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeGpu, FakeNvml, slices

from engine.cards import Card, driver
from engine.planner.plan import Plan, plan
from engine.sources import Flag, load
from titancli.launch.ranks import (
    Moved,
    Row,
    Witness,
    lines,
    moved,
    place_ranks,
    read_rows,
    rows_here,
    rows_of,
    write_rows,
)
from titancli.monitor.run_state import Rank, RunState

UUIDS = [f"GPU-8932f93{index}-d72c-4106-c12f-20bd9faed9f6" for index in range(8)]


def cards(visible: str | None = None, *gpus: FakeGpu) -> tuple[Card, ...]:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return driver(FakeNvml(*(gpus or (FakeGpu(uuid=uuid) for uuid in UUIDS))), environ).cards


def planned(gpu: str, processes: int, nodes: int = 1) -> Plan:
    keys = {"gpu": gpu, "gpus_per_node": str(processes), "nodes": str(nodes)}
    return plan(load(environ={}, flags=[Flag(f"cluster.{name}", value, "") for name, value in keys.items()]).config)


def told(*ranks: dict[str, Any]) -> RunState:
    return RunState(ranks={rank["rank"]: Rank(**rank) for rank in ranks})


def test_c45_ranks_get_the_visible_gpus_in_their_order() -> None:
    rows = rows_here(planned("h200", 2), cards("4,6"), host="node-3")
    assert [(row.rank, row.local_rank, row.gpu, row.uuid) for row in rows] == [
        (0, 0, 4, UUIDS[4]),
        (1, 1, 6, UUIDS[6]),
    ]


def test_ranks_of_a_second_node_go_on_counting() -> None:
    rows = rows_here(planned("h200", 8, nodes=2), cards(), host="b", node_rank=1, nodes=2)
    assert [(row.rank, row.local_rank, row.gpu) for row in (rows[0], rows[-1])] == [(8, 0, 0), (15, 7, 7)]


def test_on_a_cpu_ranks_have_a_host_and_no_gpu() -> None:
    rows = rows_here(planned("cpu", 2), cards(), host="laptop")
    assert rows == (Row(rank=0, host="laptop", local_rank=0), Row(rank=1, host="laptop", local_rank=1))
    assert lines(rows, 100) == ["ranks 0-1  laptop  cpu"]


def test_few_ranks_have_a_line_each_with_the_whole_uuid() -> None:
    rows = rows_here(planned("h200", 2), cards("4,6"), host="node-3")
    assert lines(rows, 100) == [
        f"rank 0  node-3  GPU 4  {UUIDS[4]}  NVIDIA H200, 140 GiB",
        f"rank 1  node-3  GPU 6  {UUIDS[6]}  NVIDIA H200, 140 GiB",
    ]


def test_on_a_narrow_screen_uuids_are_as_long_as_cuda_needs_them() -> None:
    rows = rows_here(planned("h200", 2), cards("4,6"), host="node-3")
    assert lines(rows, 60)[0] == "rank 0  node-3  GPU 4  GPU-8932f934  NVIDIA H200, 140 GiB"


@pytest.mark.parametrize("host", ["n", "a-node-with-a-long-name.of.a-cluster.example.org"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_table_fits_60_columns(host: str, nodes: int) -> None:
    rows = [
        row
        for node in range(nodes)
        for row in rows_here(planned("h200", 8, nodes), cards(), host=f"{host}{node}", node_rank=node, nodes=nodes)
    ]
    assert max(map(len, lines(rows, 60))) <= 60


def test_many_ranks_have_a_line_for_each_host() -> None:
    rows = [
        row
        for node in range(2)
        for row in rows_here(planned("h200", 8, 2), cards(), host=f"n{node}", node_rank=node, nodes=2)
    ]
    assert lines(rows, 100) == ["ranks 0-7  n0  GPUs 0-7, NVIDIA H200", "ranks 8-15  n1  GPUs 0-7, NVIDIA H200"]


def test_rows_of_all_nodes_are_kept_in_one_folder(tmp_path: Path) -> None:
    sides = [rows_here(planned("h200", 8, 2), cards(), host=f"n{node}", node_rank=node, nodes=2) for node in range(2)]
    for node in (1, 0):
        write_rows(tmp_path, sides[node], node_rank=node, nodes=2)
    assert read_rows(tmp_path) == (*sides[0], *sides[1])


def test_a_folder_without_rows_or_with_damaged_ones_has_none(tmp_path: Path) -> None:
    assert read_rows(tmp_path) == ()
    (tmp_path / "ranks.json").write_text('[{"rank": 0,')
    assert read_rows(tmp_path) == ()


def test_workers_on_the_gpus_that_were_told_are_well() -> None:
    rows = rows_here(planned("h200", 2), cards("4,6"), host="n")
    workers = [{"rank": rank, "host": "n", "gpu": "NVIDIA H200", "uuid": UUIDS[4 + 2 * rank]} for rank in (0, 1)]
    assert moved(rows, told(*workers)) == []
    assert moved(rows, told(workers[0])) == []


def test_a_worker_on_another_gpu_or_host_is_told() -> None:
    rows = rows_here(planned("h200", 2), cards("4,6"), host="n")
    workers = [{"rank": 0, "host": "n", "uuid": UUIDS[0]}, {"rank": 1, "host": "m", "uuid": UUIDS[6]}]
    assert moved(rows, told(*workers)) == [
        Moved(rank=0, works_on=UUIDS[0], meant=UUIDS[4]),
        Moved(rank=1, works_on="m", meant="n"),
    ]


def test_a_mig_instance_is_known_by_its_own_uuid_or_its_gpus() -> None:
    part = slices("aa", "1g.18gb")
    (row,) = rows_here(planned("h200", 1), cards(None, part), host="n")
    for uuid in ("GPU-aa-0", "MIG-aa-0", "GPU-aa"):
        assert moved([row], told({"rank": 0, "host": "n", "uuid": uuid})) == []


def test_what_workers_say_is_a_table_too() -> None:
    state = told({"rank": 1, "host": "m", "gpu": "NVIDIA H200", "uuid": UUIDS[1]}, {"rank": 0, "host": None})
    assert rows_of(state) == (Row(rank=1, host="m", uuid=UUIDS[1], name="NVIDIA H200"),)


def test_each_difference_is_warned_of_once(tmp_path: Path) -> None:
    write_rows(tmp_path, rows_here(planned("h200", 2), cards("4,6"), host="n"))
    witness = Witness(tmp_path)
    workers = [{"rank": rank, "host": "n", "uuid": UUIDS[0]} for rank in (0, 1)]
    said = [witness.news(told(*workers[:count])) for count in (0, 1, 1, 2)]
    assert [len(texts) for texts in said] == [0, 1, 0, 1]
    assert said[1][0] == (
        f"warning[H820]: rank 0 works on {UUIDS[0]}, and {UUIDS[4]} was meant; "
        "something between titan and the workers has changed CUDA_VISIBLE_DEVICES"
    )


def test_a_launch_keeps_the_table_it_shows(tmp_path: Path) -> None:
    shown = place_ranks(tmp_path, planned("cpu", 2), node=0, nodes=1)
    assert shown == [f"ranks 0-1  {socket.gethostname()}  cpu"]
    assert [row.rank for row in read_rows(tmp_path)] == [0, 1]


def test_a_table_that_cannot_be_kept_is_shown(tmp_path: Path) -> None:
    assert len(place_ranks(tmp_path / "gone", planned("cpu", 1), node=0, nodes=1)) == 1
