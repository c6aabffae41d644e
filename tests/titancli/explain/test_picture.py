"""The mesh as a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.hardware import GPUS, Cluster
from engine.keys import with_values
from engine.planner.plan import plan
from engine.planner.wires import Wire, wires
from engine.sources import load
from titancli import figures
from titancli.charts import Pen
from titancli.explain.picture import groups_in_words, mesh_picture, traffic_in_words, wire_lines
from titancli.explain.seen import Seen

PLAIN = Pen(has_blocks=False, has_colour=False)
BLOCKS = Pen(has_blocks=True, has_colour=False)
NODE = Cluster(gpu=GPUS["h100-80"], nodes=1, gpus_per_node=8, network_gbit_per_s_per_gpu=400.0)


def found(cluster: Cluster = NODE, **degrees: int) -> tuple[Wire, ...]:
    """The wires of the debug model."""
    edits = {f"parallelism.{name}_parallel_degree": degree for name, degree in degrees.items()}
    batch = {"training.local_batch_size": degrees.get("pipeline", 1), "model.shape.n_layers": 8}
    config = with_values(load(environ={}).config, edits | batch)
    return wires(config, cluster, plan(config, cluster))


def picture(cluster: Cluster = NODE, *, width: int = 60, pen: Pen = PLAIN, **degrees: int) -> list[str]:
    """Its picture."""
    return mesh_picture(
        found(cluster, **degrees),
        world_size=cluster.world_size,
        ranks_per_node=cluster.gpus_per_node,
        width=width,
        pen=pen,
    )


def test_neighbours_of_a_group_are_joined_and_others_share_a_number() -> None:
    lines = picture(tensor=2, width=100)
    assert lines[:4] == [
        "  node 0",
        "    rank      0   1   2   3   4   5   6   7",
        f"    tp        0---0   2---2   4---4   6---6  NVLink, {lines[2].rpartition(', ')[2]}",
        f"    dp_shard  0   1   0   1   0   1   0   1  NVLink, {lines[3].rpartition(', ')[2]}",
    ]


def test_the_word_rank_stands_apart_from_the_numbers_under_the_shortest_axis() -> None:
    assert picture(tensor=8, width=100)[1:3] == [
        "    rank  0   1   2   3   4   5   6   7",
        f"    tp    0---0---0---0---0---0---0---0  NVLink, {figures.memory(found(tensor=8)[0].sent_bytes)}",
    ]


def test_lines_are_drawn_where_the_stream_takes_them() -> None:
    assert "0───0───0───0" in "\n".join(picture(width=100, pen=BLOCKS))


def test_what_a_rank_sends_stands_behind_its_axis() -> None:
    (wire,) = found()
    assert picture()[2].endswith(f"  NVLink, {figures.memory(wire.sent_bytes)}")


def test_two_nodes_are_drawn_and_of_more_the_first_and_its_neighbours() -> None:
    two = picture(replace(NODE, nodes=2), tensor=8)
    assert [line for line in two if "node" in line] == ["  node 0", "  node 1"]
    many = picture(replace(NODE, nodes=64), tensor=8, pipeline=8)
    nodes = [line.strip() for line in many if line.startswith(("  node", "  ..."))]
    assert nodes == ["node 0", "node 1", "... nodes 2 to 7 likewise", "node 8", "... nodes 9 to 63 likewise"]


def test_a_neighbour_shows_only_what_leaves_it() -> None:
    two = picture(replace(NODE, nodes=2), tensor=8)
    assert sum(line.lstrip().startswith("tp") for line in two) == 1
    assert sum(line.lstrip().startswith("dp_shard") for line in two) == 2


@pytest.mark.parametrize("ranks", [8, 16, 24])
@pytest.mark.parametrize("nodes", [1, 64])
@pytest.mark.parametrize("pen", [PLAIN, BLOCKS])
def test_any_node_fits_60_columns(ranks: int, nodes: int, pen: Pen) -> None:
    lines = picture(replace(NODE, gpus_per_node=ranks, nodes=nodes), tensor=2, pen=pen)
    assert max(map(len, lines)) <= 60
    drawn = [int(word) for line in lines if line.startswith("    rank") for word in line.split()[1:]]
    assert set(range(ranks)) <= set(drawn)


def test_one_rank_talks_to_nobody() -> None:
    assert picture(replace(NODE, gpus_per_node=1)) == ["  one rank: it talks to nobody"]


def test_groups_in_words_say_where_they_lie() -> None:
    assert groups_in_words(found()[0]) == "ranks 0-7: the one group of 8, in one node, over NVLink (346 GB/s)"
    tp, fsdp = found(replace(NODE, nodes=4), tensor=4)
    assert groups_in_words(tp) == "ranks 0-3: one of 8 groups of 4, in one node, over NVLink (346 GB/s)"
    assert groups_in_words(fsdp).startswith(
        "ranks 0, 4 ... 28: one of 4 groups of 8, 2 of them in a node, over the network ("
    )
    rack = Cluster(gpu=GPUS["gb200"], nodes=4, gpus_per_node=4, network_gbit_per_s_per_gpu=400.0)
    assert "4 of them in a node, nodes joined by NVLink, over NVLink" in groups_in_words(found(rack)[0])


def test_traffic_in_words_names_bytes_time_and_what_is_hidden(see: Callable[..., Seen]) -> None:
    words = traffic_in_words(see("2d-70b").wires[1])
    assert words.startswith("a rank sends 47.7 GiB a step (weights 15.9 GiB, gradients 31.8 GiB) in ")
    assert words.endswith(" of it hidden by compute")


def test_a_time_that_is_not_known_is_not_told_as_none(see: Callable[..., Seen]) -> None:
    (wire,) = see("quickstart").wires
    assert traffic_in_words(replace(wire, seconds=None)).endswith("; how long that takes is not known")


@pytest.mark.parametrize("width", [60, 100])
def test_words_fit_the_width(width: int, see: Callable[..., Seen]) -> None:
    assert max(map(len, wire_lines(see("4d-405b-long").wires, width))) <= width
