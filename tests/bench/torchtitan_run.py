"""One rank of torchtitan 0.2.2, as torchrun starts it: its own trainer, at the sizes and on the data of titan's.

`torchrun ... tests/bench/torchtitan_run.py JOB.json --job.config_file FILE`. Through what torchtitan leaves open to its
users (a train spec under a new name, its metrics' logger, a subclass of its trainer) it gets a flavor of the
asked shape, titan's batches in titan's order, titan's initial weights, and a file of JSON lines that is written
at its own log steps. Nothing between two log steps is other than in its own program. With `own` in the job, data
and initial weights are its own too. Knows torchtitan; what is run and what becomes of it is bench_peers.py's.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from engine.config import Config
from engine.data.loader import Loader
from engine.huggingface.names import halves_from_interleaved, rotary_heads
from engine.model.initial import materialise
from engine.model.llama import Decoder
from engine.parent import die_with
from engine.planner.plan import Plan, plan
from engine.reading.flags import split_flags
from engine.shapes import ModelShape
from engine.sources import load

SPEC, FLAVOR = "llama3_as_titan", "bench"
"""What a config of torchtitan names as `model.name` and `model.flavor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What bench_peers.py asks for: `flags` make titan's config of the same run; `lines` is one file a rank.

    `profile_from`: the first of `profiled_steps` steps that are recorded to `trace`; None: none.
    """

    flags: list[str]
    lines: str
    own: bool = False
    cpu: bool = False
    profile_from: int | None = None
    profiled_steps: int = 3
    trace: str = ""


class Batches:
    """Titan's batches of one data rank as torchtitan reads them: a dictionary of inputs, and labels."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """One accumulation step at a time, from step 1."""
        step = 1
        while (batches := self._loader.batches(step)) is not None:
            for batch in batches:
                assert batch.positions_BS is None, "torchtitan's plain attention sees no documents"
                yield {"input": torch.from_numpy(batch.tokens_BS)}, torch.from_numpy(batch.labels_BS)
            step += 1

    def state_dict(self) -> dict[str, Any]:
        """Nothing: no checkpoint is saved."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing: no checkpoint is loaded."""
        assert not state_dict, "no checkpoint is loaded"


@torch.no_grad()
def fill(model: nn.Module, shape: ModelShape, seed: int) -> None:
    """Gives a Llama of torchtitan the weights that titan begins with; whole layers are drawn, one at a time."""
    weights = {_plain(name): weight for name, weight in model.named_parameters()}
    device = next(iter(weights.values())).device
    for layers, first, last in (
        ((), True, False),
        *(((layer,), False, False) for layer in range(shape.n_layers)),
        ((), False, True),
    ):
        with torch.device("meta"):
            part = Decoder(shape, layers, first=first, last=last, seq_len=1)
        materialise(part, seed, device)
        for name, value in part.named_parameters():
            _put(weights.pop(name), interleaved(value, rotary_heads(name, shape), shape.head_dim))
    assert not weights, f"{', '.join(weights)} have no values"
    if device.type == "cuda":
        torch.cuda.empty_cache()


def interleaved(halves: Tensor, heads: int, head_dim: int) -> Tensor:
    """The rows of queries or keys in the order that torchtitan turns them in; `heads` 0: any other weight."""
    if not heads:
        return halves
    rows = torch.empty_like(halves)
    rows[halves_from_interleaved(heads, head_dim)] = halves
    return rows


def _put(weight: Tensor, value: Tensor) -> None:
    if isinstance(weight, DTensor):
        value = distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)
    weight.copy_(value)


def _plain(name: str) -> str:
    """A weight's name without what compiling and recomputing put around its block."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def stand_in_cpu() -> None:
    """Makes torchtitan take the CPU for its device; to be called before it is imported.

    It takes "cuda" where it finds no accelerator, and asks of a device what torch.cpu does not tell.
    """
    device = SimpleNamespace(
        set_device=lambda _: None,
        current_device=lambda: 0,
        synchronize=lambda: None,
        empty_cache=lambda: None,
        reset_peak_memory_stats=lambda: None,
        memory_stats=lambda _: {},
        get_device_name=lambda _: "CPU",
        get_device_properties=lambda _: SimpleNamespace(total_memory=1 << 30),
    )
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: device
    from torchtitan.distributed import utils

    # Its barrier names devices, which only NCCL takes.
    utils.set_pg_timeouts = lambda **_: None
    from torchtitan.models.llama3.infra import parallelize

    undivided = parallelize.disable_fsdp_gradient_division

    def summed(model: nn.Module) -> None:
        undivided(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # Gloo has no sum that multiplies.
                module.set_force_sum_reduction_for_comms(True)

    parallelize.disable_fsdp_gradient_division = summed


def main() -> None:
    """Trains by torchtitan's own main function."""
    die_with(os.getppid())
    job = Job(**json.loads(Path(sys.argv.pop(1)).read_text(encoding="utf-8")))
    if job.cpu:
        stand_in_cpu()
    config = load(preset="fsdp-8b", flags=split_flags(job.flags)[1], environ={}).config
    register(config, plan(config), own=job.own)

    import torchtitan.train

    torchtitan.train.main(trainer_of(job))


def register(config: Config, resolved: Plan, *, own: bool) -> None:
    """Makes the train spec and its flavor known; unless `own`, with titan's batches and initial weights."""
    from torchtitan.models.llama3 import get_train_spec
    from torchtitan.models.llama3.model.args import RoPEScalingArgs, TransformerModelArgs
    from torchtitan.protocols.train_spec import register_train_spec

    shape = resolved.model
    assert not shape.qk_norm, "torchtitan's Llama has no norms of queries and keys"
    assert not shape.tie_embeddings, "torchtitan's Llama has a head of its own"
    stretch = shape.rope_scaling
    arguments = TransformerModelArgs(
        dim=shape.dim,
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        vocab_size=shape.vocab_size,
        # It rounds 8/3 of the width up to a multiple of this.
        multiple_of=shape.ffn_dim,
        norm_eps=shape.norm_eps,
        rope_theta=shape.rope_theta,
        rope_scaling_args=RoPEScalingArgs(scaling_factor=1.0 if stretch is None else stretch.factor),
    )
    base = get_train_spec()
    changed: dict[str, Any] = {"model_args": {FLAVOR: arguments}}
    if not own:

        class Filled(base.model_cls):  # type: ignore[misc, name-defined]
            """Its Llama with titan's initial weights, in whatever layout it holds them."""

            def init_weights(self, *args: Any, **kwargs: Any) -> None:
                super().init_weights(*args, **kwargs)
                fill(self, shape, config.debug.seed)

        def batches(*, dp_rank: int, **_: Any) -> Batches:
            return Batches(Loader(config, resolved, data_rank=dp_rank))

        changed |= {"model_cls": Filled, "build_dataloader_fn": batches, "build_tokenizer_fn": None}
    register_train_spec(SPEC, dataclasses.replace(base, **changed))


def trainer_of(job: Job) -> type:
    """Its trainer, which also writes its figures down, and records three steps where that is asked for."""
    from torchtitan.train import Trainer

    class Told(Trainer):  # type: ignore[misc]
        """Writes its figures to a file of this rank."""

        def __init__(self, job_config: Any) -> None:
            super().__init__(job_config)
            assert self.metrics_processor.logger.__class__.__name__ == "BaseLogger", "another logger is asked for"
            self.metrics_processor.logger = Lines(f"{job.lines}.{os.environ['RANK']}")

    if job.profile_from is None:
        return Told
    first, trace = job.profile_from, Path(job.trace)

    class Recorded(Told):
        """Records as many steps as asked for, from `first` on."""

        def train_step(self, data_iterator: Any) -> None:
            if self.step == first:
                self.recording = begin_recording(job)
            super().train_step(data_iterator)
            if self.step == first + job.profiled_steps - 1:
                end_recording(self.recording, job, trace)

    return Recorded


def begin_recording(job: Job) -> torch.profiler.profile:
    """A profiler that runs."""
    activity = torch.profiler.ProfilerActivity
    recording = torch.profiler.profile(activities=[activity.CPU if job.cpu else activity.CUDA])
    _wait(job)
    recording.start()
    return recording


def end_recording(recording: torch.profiler.profile, job: Job, trace: Path) -> None:
    """Waits for the device, and writes the trace, compressed; rank 0's alone."""
    _wait(job)
    recording.stop()
    if os.environ["RANK"] == "0":
        with tempfile.NamedTemporaryFile(suffix=".json") as plain:
            recording.export_chrome_trace(plain.name)
            with open(plain.name, "rb") as text, gzip.open(trace, "wb", compresslevel=1) as packed:
                shutil.copyfileobj(text, packed)


def _wait(job: Job) -> None:
    if not job.cpu:
        torch.cuda.synchronize()


class Lines:
    """What its metrics processor logs to, in place of its logger that does nothing."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115
        names = ("torchtitan", "torch", "torchao")
        self._write({"versions": {name: version(name) for name in names}, "time": time.time()})

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """One line of a log step, whose loss it has read back just before."""
        self._write(
            {
                "step": step,
                "time": time.time(),
                "loss": metrics["loss_metrics/global_avg_loss"],
                "grad_norm": metrics["grad_norm"],
                "lr": metrics["lr"],
                "tokens_per_s_per_gpu": metrics["throughput(tps)"],
                "peak_active_gib": metrics["memory/max_active(GiB)"],
                "peak_reserved_gib": metrics["memory/max_reserved(GiB)"],
                "alloc_retries": metrics["memory/num_alloc_retries"],
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


if __name__ == "__main__":
    main()
