"""What is too slow, who is named for it, and what may be done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engine.config import Cluster as ClusterConfig
from engine.errors import Finding
from engine.hardware import resolve_cluster
from engine.preflight import assumed
from engine.preflight.judging import Failed, Link, Measured, amount, judge
from engine.preflight.rings import rounds

WELL = {assumed.BF16: 665.0, assumed.MEMORY: 4.26, assumed.HOST: 55.0}


def measured(
    *,
    nodes: int = 1,
    each: int = 8,
    slow: Mapping[tuple[str, int], float] | None = None,
    links: Mapping[tuple[int, ...], float] | None = None,
    every: float = 1.0,
    gpu: str = "h200",
    failed: Sequence[Failed] = (),
) -> Measured:
    """Ranks on GPUs as they should be, times `every`, but for those rates and links that are given."""
    world = nodes * each
    layout = [list(range(node * each, (node + 1) * each)) for node in range(nodes)]
    config = ClusterConfig(gpu=gpu, nodes=nodes, gpus_per_node=each, calibration="none")  # type: ignore[arg-type]
    slow, links, cluster = slow or {}, links or {}, resolve_cluster(config)
    sound = assumed.link_rates(cluster, reduced_bytes=256 << 20)
    return Measured(
        cluster=cluster,
        world_size=world,
        places={
            rank: {
                "host": f"n{rank // each}",
                "node": rank // each,
                "local_rank": rank % each,
                "gpu": {"name": "NVIDIA H200", "uuid": f"GPU-{rank}"} if gpu != "cpu" else None,
            }
            for rank in range(world)
        },
        rates={
            name: {rank: every * slow.get((name, rank), value) for rank in range(world)} for name, value in WELL.items()
        },
        links=[
            Link(
                kind=each_round.kind, ranks=group, gbyte_per_s=every * links.get(group, sound.get(each_round.kind, 1.0))
            )
            for each_round in rounds(layout)
            for group in each_round.groups
        ],
        failed=failed,
        reduced_bytes=256 << 20,
        seconds=21.34,
    )


def verdict(found: Measured) -> tuple[dict[str, Any], list[Finding]]:
    told = json.loads(json.dumps(judge(found)))
    return told, [Finding(**finding) for finding in told["findings"]]


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_sound_cluster_is_well(nodes: int) -> None:
    told, findings = verdict(measured(nodes=nodes))
    assert (told["ok"], findings, told["failed"]) == (True, [], [])
    assert told["rates"][assumed.BF16]["median"] == 665.0
    assert told["ranks"][7]["gpu"]["uuid"] == "GPU-7"


def test_a_slow_gpu_is_named_with_rank_host_and_uuid() -> None:
    told, (finding,) = verdict(measured(slow={(assumed.BF16, 5): 400.0}))
    assert not told["ok"]
    assert (finding.rule, finding.severity) == ("H822", "error")
    assert finding.message == (
        "rank 5 on n0 (NVIDIA H200, GPU-5) multiplies bfloat16 at 400 TFLOP/s, 58 % of the 690 TFLOP/s that the plan "
        "assumes and 60 % of the 665 TFLOP/s that is usual here"
    )
    assert finding.fix.startswith("leave that GPU or node out, plan with what it reaches (cluster.bf16_tflops = 573.")
    assert finding.fix.endswith(", or launch without --preflight")


def test_what_differs_by_the_noise_of_sound_gpus_is_well() -> None:
    assert verdict(measured(slow={(assumed.BF16, 5): 0.9 * 665.0}))[1] == []


def test_gpus_that_are_all_slower_than_planned_are_one_finding() -> None:
    found = measured(slow={(assumed.MEMORY, rank): 2.0 for rank in range(8)})
    _, (finding,) = verdict(found)
    assert finding.message == (
        "each of the 8 GPUs copies within its memory at about 2 TB/s, 47 % of the 4.27 TB/s that the plan assumes"
    )
    assert "cluster.hbm_tbyte_per_s = 2.2" in finding.fix


def test_the_host_counts_against_other_ranks_only() -> None:
    assert verdict(measured(slow={(assumed.HOST, rank): 12.0 for rank in range(8)}))[1] == []
    _, (finding,) = verdict(measured(slow={(assumed.HOST, 3): 20.0}))
    assert finding.message.startswith("rank 3 on n0 (NVIDIA H200, GPU-3) takes from the host's memory 20 GB/s, 36 %")


def test_a_slow_link_is_named_by_both_its_ends() -> None:
    _, (finding,) = verdict(measured(links={(2, 3): 90.0}))
    assert finding.rule == "H823"
    assert finding.message.startswith(
        "the link between rank 2 on n0 (NVIDIA H200, GPU-2) and rank 3 on n0 (NVIDIA H200, GPU-3) carries 90 GB/s"
    )
    assert "cluster.nvlink_gbyte_per_s = 15" in finding.fix


def test_a_gpu_whose_links_are_both_slow_is_named_itself() -> None:
    _, (finding,) = verdict(measured(links={(2, 3): 90.0, (3, 4): 95.0, tuple(range(8)): 100.0}))
    assert finding.message.startswith("rank 3 on n0 (NVIDIA H200, GPU-3) is slow to 2 neighbours: it sends 90 GB/s")


def test_a_node_that_is_slow_though_its_pairs_are_not_is_named() -> None:
    _, (finding,) = verdict(measured(nodes=2, links={tuple(range(8, 16)): 120.0}))
    assert finding.message.startswith("the 8 GPUs of n1 together send 120 GB/s in an all-reduce, 36 % of the 334")


def test_a_node_that_is_slow_to_both_neighbours_is_named() -> None:
    slow = {(rank, rank + 8): 9.0 for rank in range(8, 16)} | {(rank, rank + 8): 9.0 for rank in range(8)}
    _, (finding,) = verdict(measured(nodes=4, links=slow))
    assert finding.message.startswith("node 1 (n1) is slow to 2 neighbours: it sends 9 GB/s in an all-reduce")
    assert finding.fix.startswith("leave that node out, plan with what it carries (cluster.network_gbit_per_s_per_gpu")


def test_one_slow_network_card_of_two_nodes_is_a_link() -> None:
    _, (finding,) = verdict(measured(nodes=2, links={(3, 11): 9.0}))
    assert finding.message.startswith("the link between rank 3 on n0 (NVIDIA H200, GPU-3) and rank 11 on n1")


def test_processors_are_compared_with_each_other_and_only_warned_of() -> None:
    slow = {(assumed.BF16, rank): 0.09 for rank in range(3)} | {(assumed.BF16, 3): 0.009}
    told, (finding,) = verdict(measured(each=4, gpu="cpu", slow=slow))
    assert told["ok"]
    assert finding.severity == "warning"
    assert finding.message == "rank 3 on n0 multiplies bfloat16 at 9 GFLOP/s, 10 % of the 90 GFLOP/s that is usual here"
    assert finding.fix == "see what else runs there, or launch without --preflight"


def causes(*failed: Failed) -> list[str]:
    told, _ = verdict(measured(failed=failed))
    assert not told["ok"]
    return [each["text"] for each in told["failed"]]


HANGS = "did not come to an end within 20 s"


def test_a_rank_that_failed_is_told_with_its_place_and_part() -> None:
    failed = Failed(rank=1, part="products", reason="failed: ValueError: boom-17")
    assert causes(failed) == ["rank 1 on n0 (NVIDIA H200, GPU-1) failed: ValueError: boom-17 (products)"]


def test_a_dead_link_is_told_once() -> None:
    ends = [Failed(rank=rank, part="pair 1", reason=HANGS, hangs=True, group=(0, 1)) for rank in (0, 1)]
    assert causes(*ends) == [
        "the link between rank 0 on n0 (NVIDIA H200, GPU-0) and rank 1 on n0 (NVIDIA H200, GPU-1) "
        f"{HANGS} in an all-reduce"
    ]


def test_a_node_that_hangs_together_is_told_once() -> None:
    group = tuple(range(8))
    ends = [Failed(rank=rank, part="node", reason=HANGS, hangs=True, group=group) for rank in group]
    assert causes(*ends) == [f"the 8 ranks of n0 together, though two alone did so, {HANGS} in an all-reduce"]


def test_who_waits_for_a_silent_rank_is_not_told() -> None:
    silent = Failed(rank=1, part="pair 1", reason="said nothing for 25 s", silent=True, group=(0, 1))
    waits = Failed(rank=0, part="pair 1", reason=HANGS, hangs=True, group=(0, 1))
    assert causes(waits, silent) == ["rank 1 on n0 (NVIDIA H200, GPU-1) said nothing for 25 s (pair 1)"]


@pytest.mark.parametrize(
    ("value", "text"), [(690.2, "690 TB/s"), (4.256, "4.26 TB/s"), (0.21, "0.21 TB/s"), (0.0042, "4.2 GB/s")]
)
def test_rates_have_three_digits_that_count(value: float, text: str) -> None:
    assert amount(value, ("TB/s", "GB/s")) == text
