"""Low precision is in force where it can be, trains near high precision, and halves what FSDP gathers."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gloo_pool import GlooPool
from shares import gathered, mine
from synthetic import Rows, tiny
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from engine.build import Built, build
from engine.config import Config, Float8, Mx
from engine.data.batch import Batch
from engine.keys import with_values
from engine.loop import fit
from engine.model.linear import Linear
from engine.model.llama import Decoder
from engine.optim import gradient_norm, update
from engine.parallel.quantize import after_update, apply_float8, apply_mx, gather_in_float8
from engine.planner.plan import plan
from engine.rules import check
from engine.shapes import shape_of
from engine.sources import Loaded
from engine.step import forward_backward

WIDTHS: dict[str, Any] = {
    "model__shape__dim": 64,
    "model__shape__ffn_dim": 96,
    "training__steps": 20,
    "optimizer__lr": 3e-3,
    "lr_scheduler__decay_ratio": 0.0,
}
FLOAT8 = {"quantize__dense__float8__enable": True}
MX = {"quantize__dense__mx__enable": True, "quantize__dense__mx__recipe_name": "mxfp8_emulated"}
GATHERED = FLOAT8 | {"quantize__dense__float8__enable_fsdp_float8_all_gather": True}
RECIPES: dict[str, dict[str, Any]] = {
    **{
        name: FLOAT8 | {"quantize__dense__float8__recipe_name": name}
        for name in ("tensorwise", "rowwise", "rowwise_with_gw_hp")
    },
    "emulated": FLOAT8 | {"quantize__dense__float8__emulate": True},
    "mxfp8_emulated": MX,
}
BF16 = {"training__mixed_precision_param": "bfloat16"}


class SameRows(Rows):
    """The first step's batches in every step, so that there is something to learn."""

    def batches(self, step: int) -> list[Batch] | None:
        """As the loader's."""
        return super().batches(min(step, 1))


def losses(**values: Any) -> Tensor:
    """Losses of twenty steps in this process."""
    config = tiny(**WIDTHS, **values)
    resolved = plan(config)
    ranks = resolved.mesh.tp * resolved.mesh.cp * resolved.mesh.data_ranks
    rank = dist.get_rank() % ranks // (resolved.mesh.tp * resolved.mesh.cp) if dist.is_initialized() else 0
    with warnings.catch_warnings():
        warnings.simplefilter("default" if config.compile.enable else "error")  # the compiler's own
        outcome = fit(config, resolved, source=SameRows(config, resolved, data_rank=rank))
    return torch.tensor([step["loss"] for step in outcome.steps], dtype=torch.float64)


def decoder(config: Config, layers: tuple[int, ...] = (0, 1)) -> Decoder:
    with torch.device("meta"):
        return Decoder(shape_of(config.model), layers, first=False, last=True, seq_len=16)


# ---- which layers ------------------------------------------------------------------------------


def in_high_precision(part: Decoder) -> set[str]:
    return {name for name, module in part.named_modules() if isinstance(module, Linear) and module.product is linear}


def test_every_linear_layer_of_the_blocks_and_no_other_is_in_float8() -> None:
    part = decoder(tiny(**WIDTHS))
    assert apply_float8(part, Float8(), tp=1) == {"output": "filter_fqns has output"}
    assert in_high_precision(part) == {"output"}


def test_c11c_a_layer_with_eight_outputs_is_skipped_and_listed() -> None:
    part = decoder(tiny(**WIDTHS | {"model__shape__n_kv_heads": 1, "model__shape__head_dim": 8}))
    skipped = apply_float8(part, Float8(filter_fqns=()), tp=1)
    assert in_high_precision(part) == skipped.keys()
    assert skipped["layers.1.attention.wk"] == "64 x 8: no multiples of 16"
    assert skipped["output"] == "64 x 259: no multiples of 16"
    assert len(skipped) == 2 * 2 + 1


def test_the_plan_lists_the_layers_that_are_skipped() -> None:
    config = tiny(**WIDTHS | FLOAT8 | {"model__shape__n_kv_heads": 1, "model__shape__head_dim": 8})
    config = with_values(config, {"quantize.dense.float8.filter_fqns": ()})
    report = check(Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan"))
    [setting] = [setting for setting in report.settings if setting.key == "quantize.dense.float8.enable"]
    assert setting.state == "active"
    for name, reason in apply_float8(decoder(config, (0,)), config.quantize.dense.float8, tp=1).items():
        assert f"{name.removeprefix('layers.0.')} ({reason.partition(':')[0]})" in setting.reason


def test_sizes_are_those_that_tensor_parallel_leaves() -> None:
    part = decoder(tiny(**WIDTHS | {"model__shape__ffn_dim": 80}))
    assert apply_float8(decoder(tiny(**WIDTHS | {"model__shape__ffn_dim": 80})), Float8(), tp=1).keys() == {"output"}
    skipped = apply_float8(part, Float8(), tp=2)
    assert skipped["layers.0.feed_forward.w1"] == "64 x 80 over 2 tensor ranks: no multiples of 16"
    assert skipped["layers.0.feed_forward.w2"] == "80 x 64 over 2 tensor ranks: no multiples of 16"
    assert "layers.0.attention.wk" not in skipped  # 32 / 2


def test_mxfp8_takes_blocks_of_32() -> None:
    part = decoder(tiny(**WIDTHS | {"model__shape__ffn_dim": 80}))
    skipped = apply_mx(part, Mx(recipe_name="mxfp8_emulated"), tp=1)
    assert {name for name in skipped if name.startswith("layers.0.")} == {
        f"layers.0.feed_forward.{name}" for name in ("w1", "w2", "w3")
    }


def test_a_filter_takes_parts_of_dotted_names() -> None:
    part = decoder(tiny(**WIDTHS))
    skipped = apply_float8(part, Float8(filter_fqns=("output", "layers.0.", "wq")), tp=1)
    assert in_high_precision(part) == skipped.keys()
    assert {name for name in skipped if name.startswith("layers.1")} == {"layers.1.attention.wq"}
    assert sum(name.startswith("layers.0.") for name in skipped) == 7


# ---- near high precision -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def float32() -> Tensor:
    """Losses in float32, which fall by more than half in twenty steps."""
    found = losses()
    assert found[-1] < found[0] / 2
    return found


@pytest.mark.parametrize(("name", "precision"), [("tensorwise", "float32"), *((name, "bfloat16") for name in RECIPES)])
def test_low_precision_trains_within_two_percent_of_float32(name: str, precision: str, float32: Tensor) -> None:
    found = losses(**RECIPES[name], training__mixed_precision_param=precision)
    print((found / float32 - 1).abs().max().item())
    assert not torch.equal(found, float32)
    torch.testing.assert_close(found, float32, rtol=0.02, atol=0)


@pytest.mark.parametrize("name", RECIPES)
def test_a_product_has_the_precision_of_its_input_and_an_error_of_three_bits(name: str) -> None:
    part = decoder(tiny(**WIDTHS))
    config = tiny(**WIDTHS, **RECIPES[name]).quantize.dense
    apply_float8(part, config.float8, tp=1) if config.float8.enable else apply_mx(part, config.mx, tp=1)
    product = part.layers["0"].attention.wq.product
    x, weight_NK = torch.randn(2, 32, 64).bfloat16().requires_grad_(), torch.randn(96, 64).bfloat16().requires_grad_()
    out, exact = product(x, weight_NK), linear(x, weight_NK)
    assert (out.dtype, out.shape) == (exact.dtype, exact.shape)
    # Values of 3 bits are off by 2 % to 3 % each, and by chance.
    assert 0.01 < ((out - exact).norm() / exact.norm()).item() < 0.06
    gradient = torch.randn(1, 32, 96).bfloat16().expand(2, 32, 96)
    for found, wanted in zip(
        torch.autograd.grad(out, (x, weight_NK), gradient),
        torch.autograd.grad(exact, (x, weight_NK), gradient),
        strict=True,
    ):
        assert ((found - wanted).norm() / wanted.norm()).item() < 0.08


@pytest.mark.parametrize(
    # Kernels of emulated mxfp8 take 20 s to make; tests/device/test_quantize.py trains with them.
    ("name", "backend"),
    [("tensorwise", "inductor"), ("mxfp8_emulated", "aot_eager")],
)
def test_compiled_blocks_are_one_graph_and_train_alike(
    name: str, backend: str, float32: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    counters.clear()
    found = losses(**RECIPES[name], compile__enable=True, compile__components=["model"])
    assert counters["stats"]["unique_graphs"] == 1
    assert dict(counters["graph_break"]) == {}
    torch.testing.assert_close(found, float32, rtol=0.02, atol=0)


def test_importing_torchao_says_nothing() -> None:
    code = (
        "from engine.parallel.quantize import _float8_product, _mx_product\n"
        "_float8_product('tensorwise', False), _mx_product(True)\n"
        "import logging; logging.getLogger('torchao').warning('other news')"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "other news\n")


# ---- gathered in float8 ------------------------------------------------------------------------


def sharded(**values: Any) -> dict[str, Any]:
    """Arguments of `tiny` for FSDP over two ranks; values go over it."""
    return {"processes": 2, **WIDTHS, **BF16, **values}


def run_losses(arguments: dict[str, Any]) -> Tensor:
    """`losses`, on a rank."""
    torch._dynamo.reset()
    return losses(**{key: value for key, value in arguments.items() if key not in WIDTHS})


@pytest.fixture(scope="module")
def alone() -> Tensor:
    """Losses of one process in float8."""
    return losses(**FLOAT8, **BF16)


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, FLOAT8),
    "gathered": (2, GATHERED),
    "kept": (2, GATHERED | {"parallelism__fsdp_reshard_after_forward": "never"}),
    "hsdp": (4, GATHERED | {"parallelism__data_parallel_replicate_degree": 2}),
    "tensor": (4, GATHERED | {"parallelism__tensor_parallel_degree": 2, "training__local_batch_size": 4}),
    "context": (2, FLOAT8 | {"parallelism__context_parallel_degree": 2, "training__local_batch_size": 8}),
    "selective": (2, GATHERED | {"activation_checkpoint__mode": "selective"}),
    "compiled": (2, GATHERED | {"compile__enable": True, "activation_checkpoint__mode": "full"}),
}


@pytest.mark.world
@pytest.mark.parametrize("name", LAYOUTS)
def test_float8_on_several_ranks_trains_as_on_one(name: str, alone: Tensor, gloo: GlooPool) -> None:
    processes, values = LAYOUTS[name]
    for found in gloo.run(processes, run_losses, arguments=sharded(**values) | {"processes": processes}):
        print((found / alone - 1).abs().max().item())
        # The scale of activations and gradients is that of one rank's own tokens, so values are rounded elsewhere.
        torch.testing.assert_close(found, alone, rtol=5e-3, atol=0)


@pytest.mark.world
def test_float8_in_a_zero_bubble_pipeline_trains_as_on_one(gloo: GlooPool) -> None:
    deep = FLOAT8 | {"model__shape__n_layers": 4}
    split = {
        "parallelism__pipeline_parallel_degree": 2,
        "parallelism__pipeline_parallel_schedule": "ZBVZeroBubble",
        "training__local_batch_size": 8,
    }
    alone = losses(**deep, **BF16)
    for found in gloo.run(2, run_losses, arguments=sharded(**deep, **split)):
        torch.testing.assert_close(found, alone, rtol=5e-3, atol=0)


class Gathered(TorchDispatchMode):
    """Bytes that all-gathers leave on this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.c10d._allgather_base_.default:
            self.nbytes += args[0].nbytes
        return func(*args, **(kwargs or {}))


def rank_of(arguments: dict[str, Any]) -> tuple[Config, Built, list[Batch]]:
    """What a rank builds, and its batches of the first step."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    return config, built, Rows(config, resolved, data_rank=built.world.data_rank).batches(1) or []


def gathered_bytes(arguments: dict[str, Any]) -> dict[str, int]:
    """Bytes gathered in a forward and backward, and the sizes of what is gathered."""
    _, built, batches = rank_of(arguments)
    forward_backward(built, batches, torch.tensor(1.0))
    with Gathered() as seen, warnings.catch_warnings():
        # Only under a dispatch mode is an output a view, of which FSDP warns.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        forward_backward(built, batches, torch.tensor(1.0))
    linears = sum(weight.numel() for name, weight in built.weights.items() if "layers" in name and weight.ndim == 2)
    return {"seen": seen.nbytes, "linears": linears, "all": sum(weight.numel() for weight in built.weights.values())}


@pytest.mark.world
def test_float8_weights_are_gathered_in_half_the_bytes(gloo: GlooPool) -> None:
    # An even vocabulary: FSDP sends padding for odd rows.
    never = {"parallelism__fsdp_reshard_after_forward": "never", "model__shape__vocab_size": 260}
    high = gloo.run(2, gathered_bytes, arguments=sharded(**never, **FLOAT8))[0]
    low = gloo.run(2, gathered_bytes, arguments=sharded(**never, **GATHERED))[0]
    assert high["seen"] == 2 * high["all"]
    assert low["seen"] == 2 * (low["all"] - low["linears"]) + low["linears"]
    assert low["linears"] > 0.6 * low["all"]


def whole_weights(arguments: dict[str, Any]) -> dict[str, Tensor]:
    """Weights by name as the state dict has them, gathered in float32."""
    _, built, _ = rank_of(arguments)
    return {name: gathered(weight) for part in built.parts for name, weight in part.state_dict().items()}


@pytest.mark.world
def test_weights_gathered_in_float8_have_the_same_names_and_first_values(gloo: GlooPool) -> None:
    expected = gloo.run(2, whole_weights, arguments=sharded())[0]
    found = gloo.run(2, whole_weights, arguments=sharded(**GATHERED))[0]
    assert found.keys() == expected.keys()
    assert all(type(found[name]) is Tensor and torch.equal(found[name], expected[name]) for name in expected)


def shards_of(built: Built) -> list[Any]:
    """What this rank holds of the weights that are gathered in float8, as FSDP keeps it."""
    held = [weight._local_tensor for weight in built.weights.values()]  # type: ignore[attr-defined]
    return [shard for shard in held if hasattr(shard, "_precomputed_scale")]


def scales(arguments: dict[str, Any]) -> dict[str, Any]:
    """Whether the scales of `after_update` give the gradients of those that each gather asks all ranks for."""
    _, built, batches = rank_of(arguments)
    shards = shards_of(built)
    known = sum(shard._precomputed_scale is not None for shard in shards)
    found: list[list[Tensor]] = []
    for _ in range(2):
        forward_backward(built, batches, torch.tensor(1.0))
        found.append([mine(gradient).clone() for gradient in built.gradients])
        built.optimizer.zero_grad()
        for shard in shards:
            shard._precomputed_scale = None
    return {"equal": all(torch.equal(a, b) for a, b in zip(*found, strict=True)), "known": known}


@pytest.mark.world
@pytest.mark.parametrize("replicas", [1, 2])
def test_scales_computed_after_the_update_are_those_of_the_whole_weight(replicas: int, gloo: GlooPool) -> None:
    arguments = sharded(**GATHERED, parallelism__data_parallel_replicate_degree=replicas) | {"processes": 2 * replicas}
    for rank in gloo.run(2 * replicas, scales, arguments=arguments):
        assert rank == {"equal": True, "known": 14}


def scales_of_tripled_weights(arguments: dict[str, Any]) -> tuple[list[float], list[float]]:
    """The scales that FSDP has after weights changed, and those that the weights call for."""
    _, built, _ = rank_of(arguments)
    with torch.no_grad():
        for weight in built.weights.values():
            weight.mul_(3.0)
    after_update(built.parts)
    kept = [shard._precomputed_scale.item() for shard in shards_of(built)]
    largest = torch.stack([shard._tensor.abs().max() for shard in shards_of(built)])
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return kept, (torch.finfo(torch.float8_e4m3fn).max / largest.double()).float().tolist()


@pytest.mark.world
def test_scales_follow_the_weights(gloo: GlooPool) -> None:
    for kept, wanted in gloo.run(2, scales_of_tripled_weights, arguments=sharded(**GATHERED)):
        assert len(kept) == 14
        assert kept == wanted


def kinds(arguments: dict[str, Any]) -> dict[str, Any]:
    """Types and dtypes of weights, gradients and optimizer states after a step, and the norm two ways."""
    config, built, batches = rank_of(arguments)
    forward_backward(built, batches, torch.tensor(8.0))
    norm = gradient_norm(built.gradients).total
    whole = torch.stack([gathered(gradient).norm() for gradient in built.gradients]).norm()
    update(built.optimizer, built.gradients, lr=config.optimizer.lr, divisor=None, bad=torch.tensor(0.0))
    states = [state for held in built.optimizer.state.values() for state in held.values() if state.ndim]
    return {
        "weights": {weight.dtype for weight in built.weights.values()},
        "gradients": {(type(mine(gradient)), gradient.dtype) for gradient in built.gradients},
        "states": {(type(mine(state)), state.dtype) for state in states},
        "norm": (norm, whole),
    }


@pytest.mark.world
def test_only_what_is_sent_is_in_float8(gloo: GlooPool) -> None:
    found = gloo.run(2, kinds, arguments=sharded(**GATHERED))[0]
    assert found["weights"] == {torch.float32}
    assert found["gradients"] == found["states"] == {(Tensor, torch.float32)}
    torch.testing.assert_close(*found["norm"], rtol=1e-6, atol=0)


def saved_and_loaded(arguments: dict[str, Any], folder: str) -> bool:
    """Whether a checkpoint gives the weights back to a rank that has others."""
    _, built, _ = rank_of(arguments)
    before = {name: gathered(weight) for name, weight in built.weights.items()}
    dcp.save(built.parts[0].state_dict(), checkpoint_id=folder)
    with torch.no_grad():
        for weight in built.weights.values():
            mine(weight).zero_()
    dcp.load(built.parts[0].state_dict(), checkpoint_id=folder)
    return all(torch.equal(gathered(weight), before[name]) for name, weight in built.weights.items())


@pytest.mark.world
def test_a_checkpoint_keeps_weights_that_are_gathered_in_float8(gloo: GlooPool, tmp_path: Path) -> None:
    assert gloo.run(2, saved_and_loaded, arguments=sharded(**GATHERED), folder=str(tmp_path)) == [True, True]


def test_weights_whose_rows_do_not_divide_are_gathered_in_high_precision() -> None:
    part = decoder(tiny(**WIDTHS))
    apply_float8(part, Float8(), tp=1)
    skipped = gather_in_float8(part, Float8(enable_fsdp_float8_all_gather=True), shards=3)
    assert skipped["layers.0.attention.wq"] == "64 rows do not divide over 3 ranks"
    assert "layers.0.feed_forward.w1" not in skipped  # 96 rows
    assert len(skipped) == 2 * 5


def test_a_tied_head_is_gathered_in_high_precision() -> None:
    config = tiny(**WIDTHS | {"model__shape__vocab_size": 256, "model__shape__tie_embeddings": True})
    with torch.device("meta"):
        part = Decoder(shape_of(config.model), (0, 1), first=True, last=True, seq_len=16)
    apply_float8(part, Float8(filter_fqns=()), tp=1)
    assert gather_in_float8(part, Float8(), shards=2) == {"output": "its weight is the embedding's too"}
    assert part.tied
    assert part.output is not None
    assert part.tok_embeddings is not None
    assert part.output.weight is part.tok_embeddings.weight
