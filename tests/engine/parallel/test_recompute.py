"""Recomputation changes what is held, and not one bit of what is computed."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from synthetic import Rows, tiny
from torch._dynamo.utils import counters
from torch.autograd.graph import saved_tensors_hooks
from watching import Watching

from engine.loop import fit
from engine.model.initial import materialise
from engine.model.llama import Decoder
from engine.parallel.compile import compile_blocks
from engine.parallel.mesh import build_world
from engine.parallel.recompute import apply_recompute
from engine.parallel.shard import precision, shard
from engine.planner.plan import Mesh, plan
from engine.planner.recompute import Recompute
from engine.shapes import shape_of

NONE = Recompute()
OP = Recompute(mode="selective")
FULL = Recompute(mode="full")
MODES = {
    "op": OP,
    "every_layer": Recompute(mode="selective", every=1),
    "every_second": Recompute(mode="selective", every=2),
    "full": FULL,
}
LAYERS, SEQUENCE = 5, 64


def decoder(recompute: Recompute, *, family: str = "llama3", compiled: bool = False) -> Decoder:
    """A whole small model, on the CPU in float32."""
    shape = shape_of(tiny(model__shape__n_layers=LAYERS, model__name=family).model)
    with torch.device("meta"):
        part = Decoder(shape, tuple(range(LAYERS)), first=True, last=True, seq_len=SEQUENCE)
    apply_recompute(part, recompute)
    if compiled:
        torch._dynamo.reset()
        compile_blocks(part)
    materialise(part, 0, torch.device("cpu"))
    return part


@contextmanager
def compiler_may_warn() -> Iterator[None]:
    """Lets the compiler's own warnings pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def gradients(part: Decoder) -> dict[str, torch.Tensor]:
    """The gradient of every weight after one forward and backward."""
    tokens_BS = torch.randint(0, 259, (2, SEQUENCE + 1), generator=torch.Generator().manual_seed(0))
    part(tokens_BS[:, :-1], tokens_BS[:, 1:]).backward()
    return {name: weight.grad for name, weight in part.named_parameters() if weight.grad is not None}


def watched(recompute: Recompute) -> Watching:
    """One forward and backward, seen by a dispatch mode."""
    part = decoder(recompute)
    with Watching() as seen:
        gradients(part)
    return seen


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
@pytest.mark.parametrize("name", MODES)
def test_gradients_are_the_same_to_the_bit(name: str, family: str) -> None:
    expected = gradients(decoder(NONE, family=family))
    found = gradients(decoder(MODES[name], family=family))
    assert found.keys() == expected.keys()
    assert [weight for weight in expected if not torch.equal(found[weight], expected[weight])] == []


@pytest.mark.parametrize("selective", ["op", "every_second"])
def test_peak_memory_falls_from_none_over_selective_to_full(selective: str) -> None:
    none, some, full = (watched(recompute).peak_bytes for recompute in (NONE, MODES[selective], FULL))
    print(none, some, full)
    assert none > some > full


def test_weights_keep_their_names() -> None:
    assert decoder(FULL).state_dict().keys() == decoder(OP).state_dict().keys() == decoder(NONE).state_dict().keys()


def test_selective_repeats_no_product_and_no_attention() -> None:
    none, op = watched(NONE).calls, watched(OP).calls
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert (op["aten::mm"], op[attention]) == (none["aten::mm"], none[attention])
    assert op["aten::silu"] == none["aten::silu"] + LAYERS


def test_full_repeats_all_but_the_last_product_of_a_block() -> None:
    assert watched(FULL).calls["aten::mm"] == watched(NONE).calls["aten::mm"] + 6 * LAYERS


def test_what_the_next_block_keeps_is_not_kept_twice() -> None:
    """The last product leaves (B, S, D) float32, which `op` would hold once more for each layer."""
    part = decoder(OP)
    kept: list[torch.Tensor] = []
    part.layers["0"].feed_forward.w2.register_forward_hook(lambda *call: kept.append(call[2].untyped_storage()))
    x_BSD, (cos, sin) = torch.randn(1, SEQUENCE, 32, requires_grad=True), (part.cos_SR, part.sin_SR)
    out_BSD = part.layers["0"](x_BSD, cos, sin)
    reference = torch.multiprocessing.reductions.StorageWeakRef(kept.pop())  # type: ignore[arg-type]
    assert reference.expired()
    out_BSD.sum().backward()


@pytest.mark.parametrize(("every", "repeated"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3]), (3, [2]), (5, [4])])
def test_every_nth_layer_is_counted_from_one(every: int, repeated: list[int]) -> None:
    part = decoder(Recompute(mode="selective", every=every))
    calls = dict.fromkeys(part.layers, 0)

    def count(layer: str) -> Any:
        def hook(*_: Any) -> None:
            calls[layer] += 1

        return hook

    for layer, block in part.layers.items():
        block.attention.wq.register_forward_hook(count(layer))
    gradients(part)
    assert [int(layer) for layer, number in calls.items() if number == 2] == repeated
    assert set(calls.values()) <= {1, 2}


def test_layers_are_counted_in_the_whole_model() -> None:
    shape = shape_of(tiny(model__shape__n_layers=LAYERS).model)
    with torch.device("meta"):
        part = Decoder(shape, (3, 4), first=False, last=True, seq_len=SEQUENCE)
    apply_recompute(part, Recompute(mode="selective", every=2))
    assert [layer for layer, block in part.layers.items() if "forward" in vars(block)] == ["3"]


# ---- compiled ----------------------------------------------------------------------------------


@cache
def compiled_step(recompute: Recompute) -> tuple[dict[str, torch.Tensor], int, int, dict[str, int]]:
    """Gradients of a model with compiled blocks, bytes saved for backward, graphs, and breaks in them."""
    part = decoder(recompute, compiled=True)
    counters.clear()
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.nbytes)
        return tensor

    with compiler_may_warn(), saved_tensors_hooks(pack, lambda tensor: tensor):
        found = gradients(part)
    return found, sum(saved), counters["stats"]["unique_graphs"], dict(counters["graph_break"])


@pytest.mark.parametrize("name", ["op", "full"])
def test_equal_blocks_share_one_graph_without_breaks(name: str) -> None:
    found, _, graphs, breaks = compiled_step(MODES[name])
    assert (graphs, breaks) == (1, {})
    # The compiler sums in another order.
    torch.testing.assert_close(found, gradients(decoder(NONE)), rtol=1e-5, atol=1e-5)


def test_repeated_layers_and_others_are_two_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is traced is the same; only no kernels are made of it.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    assert compiled_step(MODES["every_second"])[2] == 2


def test_compiled_blocks_keep_less_in_the_same_order() -> None:
    none, op, full = (compiled_step(recompute)[1] for recompute in (NONE, OP, FULL))
    print(none, op, full)
    assert none > op > full


def test_the_compiler_keeps_what_its_budget_allows() -> None:
    modes = (NONE, *(Recompute(mode="memory_budget", budget=budget) for budget in (0.5, 0.0)))
    steps = [compiled_step(mode) for mode in modes]
    kept = [step[1] for step in steps]
    print(kept)
    assert kept[0] > kept[1] > kept[2]
    torch.testing.assert_close(steps[2][0], steps[0][0], rtol=1e-5, atol=1e-5)


def test_a_budget_ends_with_its_build() -> None:
    decoder(Recompute(mode="memory_budget", budget=0.25))
    assert torch._functorch.config.activation_memory_budget == 0.25
    decoder(NONE)
    assert torch._functorch.config.activation_memory_budget == 1.0


def test_nobody_is_told_of_in_place_operations(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch._higher_order_ops.wrap")
    apply_recompute(decoder(NONE), NONE)
    with caplog.at_level(logging.WARNING, logger.name):
        logger.warning("\nDetected that context_fn is passed to torch.utils.checkpoint under torch.compile.")
        logger.warning("other news")
    assert [record.getMessage() for record in caplog.records] == ["other news"]


# ---- sharded -----------------------------------------------------------------------------------


def sharded_gradients(mode: Literal["none", "op", "full"], compiled: bool) -> list[torch.Tensor]:
    """What this rank holds of each gradient, after a step under FSDP."""
    part = decoder({"none": NONE, "op": OP, "full": FULL}[mode], compiled=compiled)
    config = tiny(2)
    world = build_world(Mesh(pp=1, dp_replicate=1, dp_shard=2, cp=1, tp=1), "cpu")
    shard(part, world.sharding, policy=precision(config.training), reshard="always", pipelined=False)
    batch = Rows(config, plan(config), data_rank=dist.get_rank()).batches(1)
    assert batch is not None
    tokens_BS, labels_BS = torch.from_numpy(batch[0].tokens_BS), torch.from_numpy(batch[0].labels_BS)
    with compiler_may_warn():
        part(tokens_BS, labels_BS).backward()
    return [weight.grad.to_local() for weight in part.parameters()]  # type: ignore[union-attr]


@pytest.mark.world
@pytest.mark.parametrize("mode", ["op", "full"])
def test_sharded_gradients_are_the_same_to_the_bit(mode: str, gloo: GlooPool) -> None:
    expected = gloo.run(2, sharded_gradients, mode="none", compiled=False)
    found = gloo.run(2, sharded_gradients, mode=mode, compiled=False)
    for mine, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


@pytest.mark.world
def test_sharded_and_compiled_gradients_are_those_of_eager(gloo: GlooPool) -> None:
    expected = gloo.run(2, sharded_gradients, mode="none", compiled=False)
    found = gloo.run(2, sharded_gradients, mode="op", compiled=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def figures(arguments: dict[str, Any]) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step of a run on this rank."""
    config = tiny(**arguments)
    resolved = plan(config)
    rank = dist.get_rank() % resolved.mesh.data_ranks
    outcome = fit(config, resolved, source=Rows(config, resolved, data_rank=rank))
    return [(step["loss"], step["grad_norm"]) for step in outcome.steps]


AXES: dict[str, dict[str, Any]] = {
    "tensor": {"parallelism__tensor_parallel_degree": 2},
    "allgather": {"parallelism__context_parallel_degree": 2},
    "ring": {"parallelism__context_parallel_degree": 2, "parallelism__context_parallel_method": "ring"},
    "ulysses": {"parallelism__context_parallel_degree": 2, "parallelism__context_parallel_method": "ulysses"},
    "pipeline": {"parallelism__pipeline_parallel_degree": 2},
    "documents": {"data__document_mask": True, "parallelism__context_parallel_degree": 2},
}


@pytest.mark.world
@pytest.mark.parametrize("name", AXES)
def test_every_layout_has_the_same_figures_to_the_bit(name: str, gloo: GlooPool) -> None:
    arguments = {"processes": 2, "training__local_batch_size": 8, "training__steps": 3, **AXES[name]}
    expected = gloo.run(2, figures, arguments=arguments)
    for mode in ("selective", "full"):
        assert gloo.run(2, figures, arguments=arguments | {"activation_checkpoint__mode": mode}) == expected
