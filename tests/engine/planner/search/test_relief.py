"""What would have to be different for a model to fit: the least hardware that holds it, of its kind or of another."""

from __future__ import annotations

from dataclasses import replace

from engine.config import Config
from engine.hardware import GPUS, Cluster
from engine.keys import with_values
from engine.planner.search import Question
from engine.planner.search.relief import ways_out
from engine.planner.search.survey import Survey
from engine.rules.layouts import refusal
from engine.shapes import shape_of


def _question(flavor: str, gpu: str, *, nodes: int, gpus_per_node: int) -> Question:
    config = with_values(Config(), {"model.flavor": flavor, "training.seq_len": 8192})
    kind = GPUS[gpu]
    cluster = Cluster(
        gpu=kind,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        network_gbit_per_s_per_gpu=kind.usual_network_gbit_per_s,
    )
    return Question(config=config, cluster=cluster)


def _fits(question: Question) -> bool:
    return Survey(question, shape_of(question.config.model), refusal).finds_any()


def test_the_cluster_that_is_offered_is_the_first_that_holds_the_model() -> None:
    question = _question("70B", "h100-80", nodes=1, gpus_per_node=1)
    larger = ways_out(question, refusal=refusal)[0].values
    assert larger == {"cluster.nodes": 2, "cluster.gpus_per_node": 8}
    fits = [_fits(_question("70B", "h100-80", nodes=nodes, gpus_per_node=8)) for nodes in (1, 2)]
    assert fits == [False, True]


def test_where_no_number_of_them_helps_other_gpus_are_named() -> None:
    question = _question("70B", "h100-80", nodes=1, gpus_per_node=1)
    small = replace(question.cluster, gpu=replace(question.cluster.gpu, name="cpu", memory_bytes=1 << 27))
    (way,) = ways_out(replace(question, cluster=small), refusal=refusal)
    assert way.values == {"cluster.gpu": "h100-80", "cluster.nodes": 2, "cluster.gpus_per_node": 8}
    assert str(way) == "use 16 x h100-80 (--gpu h100-80 --nodes 2 --gpus-per-node 8)"


def test_copies_that_are_asked_for_are_kept_where_it_is_asked_whether_anything_fits() -> None:
    question = _question("8B", "h100-80", nodes=1, gpus_per_node=8)
    copies = "parallelism.data_parallel_replicate_degree"
    asked = with_values(question.config, {copies: 8})
    assert _fits(question)
    assert not _fits(replace(question, config=asked, fixed=frozenset({copies})))
