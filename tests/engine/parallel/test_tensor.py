"""Tensor, sequence and loss parallelism: the pieces, the collectives, and the figures of one process.

Loss, norm and weights of the plain layouts are held in tests/engine/test_layouts.py; here is what goes with them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from layouts import tensor_layout, tensor_rows
from shares import gathered, mine
from synthetic import tiny
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

# What checkpoints go by; not exported by torch, tried on 2.11 and 2.13.
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._python_dispatch import TorchDispatchMode

from engine.build import Built, build
from engine.loop import fit
from engine.model.llama import Decoder
from engine.optim import gradient_norm
from engine.parallel.tensor import apply_tensor_parallel
from engine.planner.plan import plan
from engine.step import forward_backward


def figures(arguments: dict[str, Any]) -> dict[str, Any]:
    """Loss and norm of each step of a fit, and what was compiled for it."""
    torch._dynamo.reset()  # processes are used again
    counters.clear()
    config = tiny(**arguments)
    resolved = plan(config)
    with warnings.catch_warnings():
        if config.compile.enable:
            warnings.simplefilter("default")  # the compiler's own
        outcome = fit(config, resolved, source=tensor_rows(config, resolved))
    steps = torch.tensor([(step["loss"], step["grad_norm"]) for step in outcome.steps], dtype=torch.float64)
    return {"steps": steps, "graphs": counters["stats"]["unique_graphs"], "breaks": dict(counters["graph_break"])}


FOUR_HEADS = {"model__shape__n_kv_heads": 4, "model__shape__ffn_dim": 104}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "accumulation": (tensor_layout(2, training__local_batch_size=2), {}),
    "accumulation_with_copies": (
        tensor_layout(2, replicas=2, training__local_batch_size=1),
        {"optimizer__name": "SGD"},
    ),
    "whole_logits": (tensor_layout(2, parallelism__disable_loss_parallel=True), {}),
    "whole_logits_fsdp_2": (tensor_layout(2, shards=2, parallelism__disable_loss_parallel=True), {}),
    "loss_in_chunks": (tensor_layout(2, shards=2, training__loss_chunks=3), {}),
    "whole_logits_in_chunks": (tensor_layout(2, training__loss_chunks=4, parallelism__disable_loss_parallel=True), {}),
    "recompute": (tensor_layout(2, shards=2, activation_checkpoint__mode="full"), {}),
    "llama2": (tensor_layout(2, shards=2), {"model__name": "llama2"}),
    "qwen3": (tensor_layout(2, shards=2), {"model__name": "qwen3"}),
    "tied": (tensor_layout(2, shards=2), {"model__shape__tie_embeddings": True}),
    "tied_tp_4": (tensor_layout(4), FOUR_HEADS | {"model__shape__tie_embeddings": True}),
    "one_sequence": (tensor_layout(2, training__local_batch_size=1), {}),
    "short_last_piece": (tensor_layout(4), FOUR_HEADS | {"model__shape__vocab_size": 13}),
    "resharding": (tensor_layout(2, shards=2, parallelism__fsdp_reshard_after_forward="always"), {}),
}


@pytest.mark.world
@pytest.mark.parametrize("name", CASES)
def test_every_rank_shows_the_loss_and_gradient_norm_of_one_process(name: str, gloo: GlooPool) -> None:
    split, values = CASES[name]
    (alone,) = gloo.run(1, figures, arguments=values)
    for rank in gloo.run(split["processes"], figures, arguments=split | values):
        # float32 sums in another order; larger than their rounding, smaller than any wrong factor.
        torch.testing.assert_close(rank["steps"], alone["steps"], rtol=1e-5, atol=0)


@pytest.mark.world
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_block_has_no_breaks_and_the_figures_of_eager(whole: bool, gloo: GlooPool) -> None:
    split = tensor_layout(2, parallelism__disable_loss_parallel=whole, training__steps=3)
    eager = gloo.run(2, figures, arguments=split)[0]
    compiled = gloo.run(2, figures, arguments=split | {"compile__enable": True})[0]
    torch.testing.assert_close(compiled["steps"], eager["steps"], rtol=1e-5, atol=0)
    assert compiled["graphs"] == 2  # one for all blocks, one for the loss
    assert compiled["breaks"] == {}


# ---- weights ---------------------------------------------------------------------------------


def built_of(arguments: dict[str, Any]) -> Built:
    """Builds on this rank."""
    config = tiny(**arguments)
    return build(config, plan(config), torch.device("cpu"))


def pieces(arguments: dict[str, Any]) -> dict[str, tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]]:
    """Of each weight what this rank holds, the whole, and where torch's checkpoints say that the piece begins."""
    found = {}
    for name, weight in built_of(arguments).weights.items():
        if not isinstance(weight, DTensor):
            found[name] = (weight.detach(), weight.detach(), (0,) * weight.ndim)
            continue
        piece = weight.to_local().detach()
        size, start = compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)
        assert size == piece.shape, name
        found[name] = (piece, weight.full_tensor().detach(), start)
    return found


@pytest.fixture(scope="module")
def whole(gloo: GlooPool) -> dict[str, torch.Tensor]:
    """The weights of one process."""
    return {name: piece for name, (piece, _, _) in gloo.run(1, pieces, arguments={})[0].items()}


@pytest.mark.world
@pytest.mark.parametrize(
    "split", [tensor_layout(2), tensor_layout(2, shards=2), tensor_layout(2, replicas=2)], ids=["tp", "fsdp", "copies"]
)
def test_c29_initial_weights_are_those_of_one_process_bit_for_bit(
    split: dict[str, Any], gloo: GlooPool, whole: dict[str, torch.Tensor]
) -> None:
    for rank in gloo.run(split["processes"], pieces, arguments=split):
        assert rank.keys() == whole.keys()
        for name, (piece, full, start) in rank.items():
            assert torch.equal(full, whole[name]), name
            slices = tuple(slice(first, first + size) for first, size in zip(start, piece.shape, strict=True))
            assert torch.equal(piece, whole[name][slices]), f"a checkpoint would put {name} elsewhere"


@pytest.mark.world
@pytest.mark.parametrize("shards", [1, 2])
def test_c29_no_two_shards_of_a_matrix_are_equal(shards: int, gloo: GlooPool) -> None:
    split = tensor_layout(2, shards=shards)
    ranks = gloo.run(split["processes"], pieces, arguments=split)
    for name in ("layers.0.attention.wq.weight", "layers.1.feed_forward.w2.weight", "output.weight"):
        shares = [rank[name][0] for rank in ranks]
        pairs = [(one, other) for index, one in enumerate(shares) for other in shares[:index]]
        assert not any(torch.equal(one, other) for one, other in pairs), name


@pytest.mark.world
def test_each_rank_holds_only_its_piece(gloo: GlooPool) -> None:
    ranks = gloo.run(2, pieces, arguments=tensor_layout(2))
    sizes = [{name: tuple(piece.shape) for name, (piece, _, _) in rank.items()} for rank in ranks]
    assert [rank["output.weight"] for rank in sizes] == [(130, 32), (129, 32)]
    for rank in sizes:
        assert rank["layers.0.attention.wq.weight"] == (16, 32)
        assert rank["layers.0.attention.wk.weight"] == (8, 32)
        assert rank["layers.0.attention.wo.weight"] == (32, 16)
        assert rank["layers.0.feed_forward.w2.weight"] == (32, 51)
        assert rank["norm.weight"] == (32,)


def tied_after_building(arguments: dict[str, Any]) -> bool:
    """Whether head and embedding are one storage."""
    (part,) = built_of(arguments).parts
    assert part.output is not None
    assert part.tok_embeddings is not None
    head, table = part.output.weight, part.tok_embeddings.weight
    return mine(head).data_ptr() == mine(table).data_ptr()


@pytest.mark.world
def test_c15_tied_weights_stay_one_weight(gloo: GlooPool) -> None:
    arguments = tensor_layout(2, shards=2, model__shape__tie_embeddings=True)
    assert gloo.run(4, tied_after_building, arguments=arguments) == [True] * 4


def meta_part(tp: int) -> Decoder:
    """A part on the meta device, split."""
    with torch.device("meta"):
        part = Decoder(plan(tiny()).model, (0, 1), first=True, last=True, seq_len=16)
    mesh = init_device_mesh("cpu", (tp,), mesh_dim_names=("tp",))
    with Collectives() as seen:
        apply_tensor_parallel(part, mesh, loss_parallel=True)
    assert not seen.counts
    return part


def meta_weights() -> set[str]:
    """Devices and kinds of the weights of a split part."""
    weights = meta_part(2).parameters()
    return {f"{type(weight.data).__name__} on {weight.device.type}" for weight in weights}


@pytest.mark.world
def test_weights_are_split_on_the_meta_device_without_communication(gloo: GlooPool) -> None:
    assert gloo.run(2, meta_weights) == [{"DTensor on meta"}] * 2


# ---- gradients and collectives ---------------------------------------------------------------


class Collectives(TorchDispatchMode):
    """Counts the collectives of the model that are issued within it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if func.namespace in ("_c10d_functional", "c10d") and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def collectives_of_a_step(arguments: dict[str, Any]) -> dict[str, int]:
    """Collectives of the tensor-parallel group in one forward and backward, and in taking the gradients."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    batches = tensor_rows(config, resolved).batches(1) or []
    with Collectives() as seen, warnings.catch_warnings():
        # Only under a dispatch mode are the logits a view, of which FSDP warns.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        forward_backward(built, batches, torch.tensor(1.0))
        assert built.gradients
    return dict(seen.counts)


@pytest.mark.world
def test_a_step_communicates_at_the_seams_and_nowhere_else(gloo: GlooPool) -> None:
    layers = 2
    counts = gloo.run(2, collectives_of_a_step, arguments=tensor_layout(2))[0]
    assert counts == {
        # Two spreads a block and the head forward; two joins a block and the embedding backward.
        "all_gather_into_tensor": (2 * layers + 1) + (2 * layers + 1),
        "reduce_scatter_tensor": (2 * layers + 1) + (2 * layers + 1),
        # Largest logit, then sum and label.
        "all_reduce": 2,
        # The gradients of all norms.
        "allreduce_": 1,
    }


def between_blocks(arguments: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of what goes from module to module, and of the logits."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    (part,) = built.parts
    seen: dict[str, tuple[int, ...]] = {}
    for name in ("tok_embeddings", "layers.0", "layers.1.attention_norm", "layers.1.attention.wq", "norm"):
        part.get_submodule(name).register_forward_hook(
            lambda _module, _inputs, output, name=name: seen.update({name: tuple(output.shape)})
        )
    batch = (tensor_rows(config, resolved).batches(1) or [])[0]
    seen["logits"] = tuple(part(torch.from_numpy(batch.tokens_BS)).shape)
    return seen


@pytest.mark.world
def test_ranks_hold_a_piece_of_the_sequence_between_products_and_of_the_vocabulary_after(gloo: GlooPool) -> None:
    first, last = gloo.run(2, between_blocks, arguments=tensor_layout(2))
    for name in ("tok_embeddings", "layers.0", "layers.1.attention_norm", "norm"):
        assert first[name] == last[name] == (8, 8, 32), name
    assert first["layers.1.attention.wq"] == (8, 16, 16)
    assert (first["logits"], last["logits"]) == ((8, 16, 130), (8, 16, 129))


def whole_gradients(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Gradients of one step, gathered, as the optimizer would see them."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    forward_backward(built, tensor_rows(config, resolved).batches(1) or [], torch.tensor(500.0))
    norm = gradient_norm(built.gradients).total
    found = dict(zip(built.weights, map(gathered, built.gradients), strict=True))  # type: ignore[attr-defined]
    return found | {"norm of all": norm}


@pytest.mark.world
@pytest.mark.parametrize("family", ["llama3", "qwen3"])
@pytest.mark.parametrize("shards", [1, 2])
def test_c20_gradients_and_their_norm_are_those_of_one_process(shards: int, family: str, gloo: GlooPool) -> None:
    (alone,) = gloo.run(1, whole_gradients, arguments={"model__name": family})
    split = tensor_layout(2, shards=shards, model__name=family)
    for rank in gloo.run(split["processes"], whole_gradients, arguments=split):
        for name, gradient in alone.items():
            torch.testing.assert_close(rank[name], gradient, rtol=1e-5, atol=1e-6, msg=name)


def mixed_norm() -> tuple[float, float]:
    """A norm of pieces 3 and 4 over tensor ranks and of a whole 12, both sharded once more over nobody."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("fsdp", "tp"))
    mine = torch.tensor([3.0 if dist.get_rank() == 0 else 4.0])
    gradients = [
        DTensor.from_local(mine, mesh, [Replicate(), Shard(0)]),
        DTensor.from_local(torch.tensor([12.0]), mesh, [Shard(0), Replicate()]),
    ]
    return gradient_norm(gradients).total.item(), gradient_norm(gradients, order="inf").total.item()


@pytest.mark.world
def test_c20_a_weight_that_tensor_ranks_hold_whole_counts_once(gloo: GlooPool) -> None:
    assert gloo.run(2, mixed_norm) == [(13.0, 12.0)] * 2


def dtypes_in_use(arguments: dict[str, Any]) -> set[tuple[torch.dtype, ...]]:
    """Dtypes of inputs, weights and outputs of every layer in one step."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    (part,) = built.parts
    seen = set()
    for module in part.modules():
        if hasattr(module, "weight") and module is not part.tok_embeddings and module is not part.output:
            module.register_forward_hook(
                lambda module, inputs, output: seen.add((inputs[0].dtype, module.weight.dtype, output.dtype))
            )
    forward_backward(built, tensor_rows(config, resolved).batches(1) or [], torch.tensor(1.0))
    return seen


@pytest.mark.world
def test_mixed_precision_is_in_force_under_tensor_parallel(gloo: GlooPool) -> None:
    arguments = tensor_layout(2, training__mixed_precision_param="bfloat16")
    assert gloo.run(2, dtypes_in_use, arguments=arguments) == [{(torch.bfloat16,) * 3}] * 2


# ---- float8 ----------------------------------------------------------------------------------

# Whole blocks of 16 on every rank.
FLOAT8 = {
    "model__shape__dim": 64,
    "model__shape__ffn_dim": 128,
    "model__shape__vocab_size": 512,
    "model__shape__n_heads": 8,
    "model__shape__n_kv_heads": 4,
    "model__shape__head_dim": 16,
    "training__mixed_precision_param": "bfloat16",
    "quantize__dense__float8__enable": True,
    "quantize__dense__float8__emulate": True,
}
GATHERED = {"quantize__dense__float8__enable_fsdp_float8_all_gather": True}


@pytest.mark.world
@pytest.mark.parametrize(
    ("split", "recipe"),
    [
        (tensor_layout(2), "tensorwise"),
        (tensor_layout(2, shards=2), "tensorwise"),
        (tensor_layout(2, shards=2, **GATHERED), "tensorwise"),
        (tensor_layout(2), "rowwise"),
        (tensor_layout(2), "rowwise_with_gw_hp"),
    ],
)
def test_float8_inside_tensor_parallel_follows_one_process(split: dict[str, Any], recipe: str, gloo: GlooPool) -> None:
    values = FLOAT8 | {"quantize__dense__float8__recipe_name": recipe}
    (alone,) = gloo.run(1, figures, arguments=values)
    for rank in gloo.run(split["processes"], figures, arguments=split | values):
        # Each rank scales its own piece of a weight, and bfloat16 sums are taken in another order: 2e-4 was seen.
        torch.testing.assert_close(rank["steps"], alone["steps"], rtol=1e-3, atol=0)


def scales_of_gathered_weights(arguments: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """The scale with which each weight is cast for the gather, and that of the whole weight."""
    found = {}
    for name, weight in built_of(arguments).weights.items():
        assert isinstance(weight, DTensor)
        piece = weight._local_tensor
        scale = getattr(piece, "_precomputed_scale", None)
        if scale is not None:
            largest = torch.tensor(float(piece._tensor.abs().max()))
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            found[name] = (float(scale), float(torch.finfo(torch.float8_e4m3fn).max / largest))
    return found


@pytest.mark.world
def test_weights_cut_twice_are_gathered_with_the_scale_of_the_whole(gloo: GlooPool) -> None:
    for rank in gloo.run(4, scales_of_gathered_weights, arguments=tensor_layout(2, shards=2, **FLOAT8, **GATHERED)):
        assert {"layers.0.attention.wq.weight", "layers.1.feed_forward.w2.weight"} <= rank.keys()
        for name, (scale, expected) in rank.items():
            assert scale == pytest.approx(expected, rel=1e-6), name
