"""The flags of several machines, by themselves."""

from __future__ import annotations

import pytest

from engine.errors import TitanError
from engine.sources import Flag, Loaded, load
from titancli.launch import Options
from titancli.launch.meeting import Meeting, meeting_of


def config(*, nodes: int = 2, name: str = "x", **keys: str) -> Loaded:
    flags = {"cluster.nodes": str(nodes), "job.name": name, **{key.replace("__", "."): keys[key] for key in keys}}
    return load(environ={}, flags=[Flag(key, value, f"--{key}") for key, value in flags.items() if value])


def met(endpoint: str, *, rank: str = "1", nodes: int = 2) -> Meeting | None:
    return meeting_of(Options(nnodes=str(nodes), node_rank=rank, rdzv_endpoint=endpoint), config(nodes=nodes))


def wrong(options: Options, loaded: Loaded) -> dict[str, str]:
    with pytest.raises(TitanError) as mistakes:
        meeting_of(options, loaded)
    assert mistakes.value.exit_code == 2
    return {finding.rule: finding.message for finding in mistakes.value.findings}


def test_flags_make_a_meeting() -> None:
    assert met("node0:29500") == Meeting(nodes=2, rank=1, host="node0", port=29500)


def test_nodes_of_the_config_need_no_flag_of_their_own() -> None:
    meeting = meeting_of(Options(node_rank="0", rdzv_endpoint="node0:1"), config(nodes=3))
    assert (meeting is not None and meeting.nodes, meeting is not None and meeting.is_head) == (3, True)


@pytest.mark.parametrize("endpoint", ["[fd00::1]:29500", " [fd00::1]:29500 "])
def test_ipv6_address_is_written_in_brackets_and_read_back(endpoint: str) -> None:
    meeting = met(endpoint)
    assert meeting is not None
    assert (meeting.host, meeting.port, meeting.endpoint) == ("fd00::1", 29500, "[fd00::1]:29500")


@pytest.mark.parametrize(
    "options",
    [Options(), Options(nnodes="1"), Options(nnodes="1", node_rank="0")],
    ids=["nothing", "nnodes", "both"],
)
def test_one_node_meets_nobody(options: Options) -> None:
    assert meeting_of(options, config(nodes=1, name="")) is None


def test_one_node_with_an_endpoint_is_met_there_and_needs_no_name() -> None:
    meeting = meeting_of(Options(rdzv_endpoint="127.0.0.1:29500"), config(nodes=1, name=""))
    assert meeting == Meeting(nodes=1, rank=0, host="127.0.0.1", port=29500)


def test_all_that_is_missing_is_told_at_once() -> None:
    assert wrong(Options(nnodes="2"), config(name="")) == {
        "R141": "one of 2 nodes needs to know which one it is",
        "R143": "2 nodes need a place to meet",
        "R145": "2 nodes need one name for their run",
    }


@pytest.mark.parametrize("rank", ["2", "-1", "one", "", "1.0"])
def test_rank_outside_of_the_nodes_is_refused(rank: str) -> None:
    told = wrong(Options(nnodes="2", node_rank=rank, rdzv_endpoint="a:1"), config())
    assert told == {"R142": f"--node-rank = {rank} is none of 2 nodes, which are counted from 0"}


def test_rank_without_nodes_is_refused() -> None:
    loaded = load(environ={}, preset="quickstart")
    assert "is none of 1 node," in wrong(Options(node_rank="1"), loaded)["R142"]
    for options in (Options(node_rank="0"), Options(node_rank="0", rdzv_endpoint="a:1")):
        told = wrong(options, loaded)
        assert told == {"R142": "--node-rank = 0 tells one of several nodes, and this run has one"}


def test_rank_of_one_node_is_taken_where_this_very_call_counts_the_nodes() -> None:
    for loaded in (
        load(preset="quickstart", environ={"TITAN_CLUSTER__NODES": "1"}),
        load(preset="quickstart", environ={}, flags=[Flag("cluster.nodes", "1", "--cluster.nodes")]),
    ):
        assert meeting_of(Options(node_rank="0"), loaded) is None


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("node0", "has no port"),
        ("node0:", "has no port"),
        ("[fd00::1]", "has no port"),
        (":29500", "names no host"),
        ("no de:29500", "names no host"),
        ("http://node0:29500", "does not tell its port from its address"),
        ("fd00::1:29500", "does not tell its port from its address"),
        ("node0:0", "0 is not a port"),
        ("node0:65536", "65536 is not a port"),
        ("node0:http", "http is not a port"),
    ],
)
def test_endpoint_that_is_no_place_is_refused(endpoint: str, says: str) -> None:
    told = wrong(Options(nnodes="2", node_rank="0", rdzv_endpoint=endpoint), config())
    assert list(told) == ["R144"]
    assert says in told["R144"]


def test_scheduler_starts_its_nodes_itself() -> None:
    told = wrong(Options(nnodes="2", rdzv_endpoint="a:1"), config(launch__scheduler="slurm"))
    assert told == {"R140": "--nnodes, --rdzv-endpoint: launch.scheduler = slurm starts the run on its nodes by itself"}
