"""What ranks must have in common, and how a difference is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from synthetic import tiny

from engine.agree import Facts, compare_all, differences, facts_of
from engine.config import Config
from engine.errors import Finding, TitanError
from engine.planner.plan import plan
from engine.report import versions


def facts(config: Config | None = None, *, host: str = "a") -> Facts:
    """Those of a rank on a GPU."""
    config = config or tiny(2)
    found = versions(torch.device("cpu")) | {"nccl": "2.28.3"}
    return facts_of(config, plan(config), host=host, versions=found, gpu="NVIDIA H200", driver="580.65.06")


SAME = facts()


def newer(name: str, version: str | None) -> Facts:
    """A rank on host b that has another version of one thing."""
    return replace(SAME, host="b", versions={**SAME.versions, name: version})


def test_ranks_that_have_all_in_common_are_told_nothing() -> None:
    assert differences([SAME, SAME, replace(SAME, host="b")]) == ()


@pytest.mark.parametrize("name", ["titan-train", "torch", "torchao", "nccl"])
def test_c44_another_version_on_one_host_is_refused_with_both(name: str) -> None:
    (found,) = differences([SAME, SAME, newer(name, "9.9"), newer(name, "9.9")])
    assert (found.rule, found.severity) == ("R211", "error")
    assert found.message == f"{name} is {SAME.versions[name]} on ranks 0, 1 (a) and 9.9 on ranks 2, 3 (b)"


def test_what_one_host_lacks_is_not_there() -> None:
    (found,) = differences([SAME, newer("torchao", None)])
    assert found.message.endswith(" on rank 0 (a) and not there on rank 1 (b)")


@pytest.mark.parametrize(
    "other", [newer("python", "3.99.1"), replace(SAME, host="b", driver="570.1")], ids=["python", "driver"]
)
def test_a_difference_that_does_no_harm_is_a_warning(other: Facts) -> None:
    (found,) = differences([SAME, other])
    assert (found.rule, found.severity) == ("R213", "warning")


def test_keys_that_differ_are_named_with_their_values() -> None:
    (found,) = differences([SAME, facts(tiny(2, optimizer__lr=0.5), host="b")])
    assert (found.rule, found.key) == ("R210", "optimizer.lr")
    assert found.message == "optimizer.lr is 0.01 on rank 0 (a) and 0.5 on rank 1 (b)"


def test_of_many_keys_that_differ_the_first_are_named() -> None:
    other = tiny(2, optimizer__lr=0.5, training__steps=7, training__max_norm=0.5, debug__seed=3, metrics__log_freq=9)
    found = differences([SAME, facts(other)])
    assert [finding.rule for finding in found] == ["R210"] * 4
    assert found[-1].message == "2 more keys differ between ranks"


def test_a_node_may_keep_its_runs_elsewhere() -> None:
    assert differences([SAME, facts(tiny(2, job__dump_folder="/other"), host="b")]) == ()


def test_plans_that_differ_under_one_config_are_refused() -> None:
    (found,) = differences([SAME, replace(SAME, plan="0123456789ab")])
    assert (found.rule, found.severity) == ("R212", "error")


def test_gpus_of_two_kinds_do_not_fit() -> None:
    with pytest.raises(TitanError) as raised:
        raise TitanError(*differences([SAME, replace(SAME, gpu="NVIDIA H100 80GB HBM3")]))
    assert raised.value.findings[0].message == (
        "the GPU is NVIDIA H200 on rank 0 (a) and NVIDIA H100 80GB HBM3 on rank 1 (a)"
    )
    assert raised.value.exit_code == 3


def on_all(ranks: list[Facts]) -> list[tuple[tuple[Finding, ...], int]]:
    """What each of several ranks that meet in one store is told, and the exit code that it calls for."""
    store = dist.HashStore()

    def told(rank: int) -> tuple[tuple[Finding, ...], int]:
        try:
            return compare_all(store, ranks[rank], rank=rank, world_size=len(ranks)), 0
        except TitanError as error:
            return error.findings, error.exit_code

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(told, range(len(ranks))))


def test_every_rank_is_told_the_same_warning() -> None:
    others = [newer("python", "3.99.1"), SAME]
    assert on_all([SAME, *others]) == [(differences([SAME, *others]), 0)] * 3


def test_every_rank_refuses_the_same() -> None:
    other = newer("torch", "9.9")
    assert on_all([SAME, other]) == [(differences([SAME, other]), 2)] * 2
