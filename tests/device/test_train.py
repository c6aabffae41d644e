"""Training on a GPU: precision, kernels, no waiting, and the same numbers over two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import Rows, tiny
from torch.profiler import ProfilerActivity, profile

from engine.config import Config
from engine.data.batch import Batch
from engine.loop import fit
from engine.model.attention import Attention, attention_kernels
from engine.model.rope import table
from engine.optim import make_optimizer, update
from engine.planner.plan import Plan, plan
from engine.shapes import FLAVORS
from engine.sources import to_toml

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    # torch's own, of all kinds and versions; what matters here is on the GPU
    pytest.mark.filterwarnings("default"),
]


def on_gpu(processes: int = 1, **values: Any) -> Config:
    """The tiny config on GPUs, with heads that the fast attention kernels take."""
    sizes = {"dim": 256, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 512}
    shape = {f"model__shape__{key}": value for key, value in sizes.items()}
    return tiny(processes, **({"cluster__gpu": "h200", "training__seq_len": 128} | shape | values))


def losses(**values: Any) -> torch.Tensor:
    """Loss and norm of each step of a run on one GPU."""
    config = on_gpu(**values)
    resolved = plan(config)
    outcome = fit(config, resolved, source=Rows(config, resolved, data_rank=0))
    return torch.tensor([(step["loss"], step["grad_norm"]) for step in outcome.steps])


def test_bf16_follows_float32() -> None:
    exact = losses()
    rounded = losses(training__mixed_precision_param="bfloat16")
    torch.testing.assert_close(rounded, exact, rtol=3e-2, atol=0)
    assert not torch.equal(rounded, exact)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_compiled_figures_are_those_of_eager(precision: str) -> None:
    values = {"training__mixed_precision_param": precision}
    tolerance = 1e-4 if precision == "float32" else 3e-2
    torch.testing.assert_close(losses(**values, compile__enable=True), losses(**values), rtol=tolerance, atol=0)


def test_the_same_seed_gives_the_same_losses_bit_for_bit() -> None:
    values = {"training__mixed_precision_param": "bfloat16", "debug__deterministic": True}
    assert torch.equal(losses(**values), losses(**values))


class Strict(Rows):
    """Makes torch raise on every wait for the GPU, from the second step until before the last."""

    def __init__(self, config: Config, resolved: Plan) -> None:
        super().__init__(config, resolved, data_rank=0)
        self._last = config.training.steps
        self.strict_steps: list[int] = []

    def batches(self, step: int) -> list[Batch] | None:
        """As the others', after setting the mode."""
        strict = 3 <= step < self._last
        torch.cuda.set_sync_debug_mode("error" if strict else "default")
        if strict:
            self.strict_steps.append(step)
        return super().batches(step)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [8, 2])
def test_nothing_waits_for_the_gpu_between_logged_steps(rows: int, compiled: bool) -> None:
    config = on_gpu(
        training__steps=8,
        metrics__log_freq=100,
        training__local_batch_size=rows,
        training__mixed_precision_param="bfloat16",
        compile__enable=compiled,
    )
    source = Strict(config, plan(config))
    try:
        outcome = fit(config, plan(config), source=source)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert outcome.last_step == 8
    assert source.strict_steps == [3, 4, 5, 6, 7]


def test_attention_takes_the_cudnn_kernel() -> None:
    shape = FLAVORS["llama3"]["1B"]
    device = torch.device("cuda")
    attention = Attention(shape).to(device, torch.bfloat16)
    x_BSD = torch.randn(1, 1024, shape.dim, device=device, dtype=torch.bfloat16, requires_grad=True)
    tables = table(shape, 1024, device)
    with profile(activities=[ProfilerActivity.CPU]) as seen, attention_kernels("cuda"):
        attention(x_BSD, *tables).sum().backward()
    names = {event.key for event in seen.key_averages()}
    assert any("_scaled_dot_product_cudnn_attention" in name for name in names), sorted(names)


def test_float32_keeps_no_square_of_the_sequence() -> None:
    shape = FLAVORS["llama3"]["1B"]
    device = torch.device("cuda")
    attention = Attention(shape).to(device)
    x_BSD = torch.randn(1, 1024, shape.dim, device=device, requires_grad=True)
    tables = table(shape, 1024, device)
    with profile(activities=[ProfilerActivity.CPU]) as seen, attention_kernels("cuda"):
        attention(x_BSD, *tables).sum().backward()
    names = {event.key for event in seen.key_averages()}
    assert any("_scaled_dot_product_efficient_attention" in name for name in names), sorted(names)


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD"])
def test_a_bad_step_changes_nothing_on_the_gpu(name: str) -> None:
    config = on_gpu(optimizer__name=name).optimizer
    weight = torch.nn.Parameter(torch.randn(100, device="cuda"))
    optimizer = make_optimizer(config, [weight])
    for gradient, bad in ((1.0, 0.0), (float("nan"), 1.0)):
        before = weight.detach().clone()
        states = {key: value.clone() for key, value in optimizer.state[weight].items()}
        weight.grad = torch.full_like(weight, gradient)
        flag = torch.tensor(bad, device="cuda")
        update(optimizer, [weight.grad], lr=0.1, divisor=torch.tensor(2.0, device="cuda"), bad=flag)
        assert torch.equal(before, weight) == bool(bad)
    assert all(torch.equal(optimizer.state[weight][key], value) for key, value in states.items())


def test_the_clip_is_the_same_on_the_device_and_by_hand() -> None:
    config = on_gpu(optimizer__eps=1.0).optimizer
    clipped, small = (torch.nn.Parameter(torch.full((8,), 5.0, device="cuda")) for _ in range(2))
    clipped.grad, small.grad = torch.full_like(clipped, 10.0), torch.full_like(small, 2.0)
    flag = torch.tensor(0.0, device="cuda")
    update(
        make_optimizer(config, [clipped]), [clipped.grad], lr=0.1, divisor=torch.tensor(5.0, device="cuda"), bad=flag
    )
    update(make_optimizer(config, [small]), [small.grad], lr=0.1, divisor=None, bad=flag)
    torch.testing.assert_close(clipped, small, rtol=1e-6, atol=0)


def launched(folder: Path, config: Config) -> tuple[list[tuple[float, float]], list[dict[str, Any]]]:
    """Trains with torchrun, as `titan launch` does; figures of the steps, and the events of rank 0."""
    folder.mkdir()
    (folder / "config.toml").write_text(to_toml(config))
    processes = str(config.cluster.gpus_per_node)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run([*command, "-m", "engine", str(folder)], check=False, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    lines: Sequence[str] = (folder / "events" / "rank-00000.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [(event["loss"], event["grad_norm"]) for event in events if event["kind"] == "step"], events


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_have_the_figures_of_one(tmp_path: Path) -> None:
    alone, _ = launched(tmp_path / "one", on_gpu(1, optimizer__lr=1e-3))
    for name, degrees in {"fsdp": (1, 2), "replicate": (2, 1)}.items():
        split = on_gpu(
            2,
            optimizer__lr=1e-3,
            parallelism__data_parallel_replicate_degree=degrees[0],
            parallelism__data_parallel_shard_degree=degrees[1],
        )
        figures, _ = launched(tmp_path / name, split)
        torch.testing.assert_close(torch.tensor(figures), torch.tensor(alone), rtol=1e-4, atol=0)


def test_events_hold_the_gpu_its_memory_and_its_use(tmp_path: Path) -> None:
    _, events = launched(tmp_path / "run", on_gpu(1, training__mixed_precision_param="bfloat16"))
    by_kind = {event["kind"]: event for event in events}
    assert by_kind["run_started"]["gpu"]["uuid"].startswith("GPU-")
    assert by_kind["memory"]["peak_active_bytes"] >= by_kind["memory"]["active_bytes"] > 0
    assert by_kind["step"]["mfu_pct"] > 0
