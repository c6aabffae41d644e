"""What tensor, context and data parallelism send, by block and by the ends of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.config import Config
from engine.hardware import GPUS, Cluster
from engine.keys import with_values
from engine.planner.activations import Work
from engine.planner.comms import Group, counting_group, group_of, links_of
from engine.planner.mesh import Mesh
from engine.planner.messages import Messages, context_messages, tensor_messages
from engine.planner.recompute import Recompute
from engine.planner.stack import TITAN, TORCHTITAN, Stack
from engine.shapes import FLAVORS

H100 = Cluster(gpu=GPUS["h100-80"], nodes=1, gpus_per_node=8, network_gbit_per_s_per_gpu=400.0)
NONE, SELECTIVE, FULL = Recompute(), Recompute(mode="selective"), Recompute(mode="full")
WORK = Work(shape=FLAVORS["llama3"]["8B"], tokens=8192, tp=8)


def group(**axes: int) -> Group:
    """The one group of a mesh in a node."""
    mesh = Mesh(**({"pp": 1, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1} | axes))
    found = group_of(mesh, "tp" if "tp" in axes else "cp", links_of(H100))
    assert found is not None
    return found


def tensor(
    edits: dict[str, Any] | None = None, recompute: Recompute = NONE, *, stack: Stack = TITAN, copy_s: float = 0.0
) -> Messages:
    """Tensor parallelism of 8."""
    config = with_values(Config(), {"parallelism.tensor_parallel_degree": 8} | (edits or {}))
    return tensor_messages(config, WORK, recompute, group(tp=8), stack, copy_s=copy_s)


def test_a_block_gathers_twice_and_sums_twice_each_way() -> None:
    tp = group(tp=8)
    once = tp.all_gather_s(WORK.whole_stream_bytes) + tp.reduce_scatter_s(WORK.whole_stream_bytes)
    assert tensor().block == pytest.approx((2 * once, 2 * once, 0.0))


def test_recomputation_sends_again_all_but_the_last_sum() -> None:
    whole, kept_sums = tensor(recompute=FULL).block, tensor(recompute=SELECTIVE).block
    assert whole[2] == pytest.approx(0.75 * whole[0])
    assert kept_sums[2] == pytest.approx(0.5 * kept_sums[0])


def test_pieces_of_several_sequences_are_copied_into_place() -> None:
    assert tensor(copy_s=1.0).block[0] == pytest.approx(tensor().block[0] + 4.0)


def test_float8_halves_what_torchtitan_gathers_and_nothing_of_titan() -> None:
    float8 = {"quantize.dense.float8.enable": True}
    assert tensor(float8).block == tensor().block
    half = group(tp=8).all_gather_s(WORK.whole_stream_bytes / 2)
    whole = group(tp=8).reduce_scatter_s(WORK.whole_stream_bytes)
    assert tensor(float8, stack=TORCHTITAN).block[0] == pytest.approx(2 * (half + whole))


def test_logits_of_the_whole_vocabulary_are_dear() -> None:
    gathered = tensor_messages(Config(), replace(WORK, loss_parallel=False), NONE, group(tp=8), TITAN, copy_s=0.0)
    assert gathered.head[0] > 10 * tensor().head[0]


def test_async_tensor_parallel_hides_a_share_of_blocks_and_nothing_of_the_ends() -> None:
    found = tensor({"parallelism.enable_async_tensor_parallel": True})
    ends: dict[str, Any] = {"blocks": 0, "again": 0, "has_embedding": True, "has_head": True}
    assert 0 < found.hidden < 1
    assert found.stage(**ends) == found.stage(**ends, in_the_open=True)
    shown = found.stage(**ends | {"blocks": 2}, in_the_open=True)[1] - found.stage(**ends)[1]
    assert shown == pytest.approx(2 * (1 - found.hidden) * found.block[1])


@pytest.mark.parametrize("method", ["allgather", "ulysses"])
def test_context_parallel_sends_again_where_blocks_are_computed_again(method: Any) -> None:
    work = replace(WORK, tp=1, cp=8, cp_method=method)
    again = [context_messages(work, mode, group(cp=8), 0.0).block[2] for mode in (NONE, FULL)]
    assert again[0] == 0.0 < again[1]


def test_gathered_keys_are_those_of_all_context_ranks() -> None:
    work = replace(WORK, tp=1, cp=8)
    keys = 2 * 8 * work.key_bytes
    assert context_messages(work, NONE, group(cp=8), 0.0).block[0] == pytest.approx(group(cp=8).all_gather_s(keys))


def test_a_ring_hides_its_messages_behind_attention_but_for_one_hop() -> None:
    work = replace(WORK, tp=1, cp=8, cp_method="ring")
    step = group(cp=8).send_s(2 * work.key_bytes)
    bare, hidden = (context_messages(work, NONE, group(cp=8), seconds).block[0] for seconds in (0.0, 1.0))
    assert (bare, hidden) == pytest.approx((7 * step, step))


def test_gradients_go_round_a_ring_in_float32_and_once_more_to_get_home() -> None:
    work = replace(WORK, tp=1, cp=8, cp_method="ring")
    step, gradients = (group(cp=8).send_s(size * work.key_bytes) for size in (2, 4))
    assert context_messages(work, NONE, group(cp=8), 0.0).block[1] == pytest.approx(7 * step + 8 * gradients)


def test_ulysses_exchanges_a_key_head_for_each_rank_where_there_are_fewer() -> None:
    work = replace(WORK, tp=1, cp=16, cp_method="ulysses")
    sixteen = replace(work, shape=replace(work.shape, n_kv_heads=16))
    assert context_messages(work, NONE, counting_group(16), 0.0) == context_messages(
        sixteen, NONE, counting_group(16), 0.0
    )
