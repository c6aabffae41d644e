"""What torchtitan's allocator holds on one rank, read off its code (0.2.2 unless said) and torch's.

Knows torchtitan's groups of weights, what its recomputation keeps and what its losses leave. Does not know
the release that a run was made with: where releases differ, the constants below name the one that is meant.

Pools: the stream that computes has weights, optimizer states, activations, logits and whole gradients; all-gathers and
reduce-scatters have a stream each, and what is free in one pool is of no use to another. Inside the first one
a hole is lost where what comes next is larger: the logits in bfloat16 are freed before backward, between float32
copies that need twice as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.config import Config
from engine.planner.activations import FLOAT32, Work, block_bytes
from engine.planner.memory import BYTES, Memory
from engine.planner.mesh import Mesh
from engine.planner.recompute import Recompute
from engine.planner.sharding import Groups

# Workspaces of cuBLAS (32 MiB for each handle and stream on Hopper) and of compiled kernels, pages of 20 MiB begun in
# each pool, the pool of small tensors, rotary tables, labels, and float32 copies inside the final norm.
_WORKSPACES_BYTES = 512 << 20
# The CUDA context and NCCL's buffers, which the allocator does not see.
_OUTSIDE_BYTES = 1 << 30
# Torch picks cuDNN's attention there, which the list of kept operations had not until 0.2.2: it is computed again.
_CUDNN_FIRST = frozenset({"b200", "gb200"})


def torchtitan_memory(
    static: Memory,
    *,
    config: Config,
    mesh: Mesh,
    gpu: str,
    work: Work,
    recompute: Recompute,
    groups: Groups,
    parts: Sequence[tuple[tuple[int, ...], int]],
    microbatches: int,
    has_loss: bool,
) -> Memory:
    """Completes what a rank holds all the time (`static`) by its fullest moment.

    `parts` are the layers of each of its stages and the microbatches in flight there.
    """
    sharded = mesh.fsdp > 1
    if not sharded and mesh.tp * mesh.pp > 1:
        # Mixed precision comes with FSDP only; autocast is left out under tensor and pipeline parallel.
        work = replace(work, width_bytes=BYTES[config.training.dtype])
    weights = _weights(config, mesh, work, groups)
    block = _Block(work=work, recompute=recompute, keeps_attention=gpu not in _CUDNN_FIRST)
    kept = sum(held * block.kept_bytes(layers) for layers, held in parts)
    if mesh.pp > 1:
        kept += _between_stages_bytes(
            work, [held for _, held in parts], microbatches, first=groups.embedding > 0, last=has_loss
        )
    logits = _Logits.of(work) if has_loss else None
    if logits is not None:
        kept += parts[-1][1] * (work.stream_bytes + work.whole_stream_bytes)
        kept += (parts[-1][1] - 1) * logits.kept_bytes
    backward = kept + block.backward_bytes() + weights.whole_bytes + weights.block_gradient_bytes
    # Sums over microbatches settle among what the first backward of a block makes and drops: what is left between them
    # is too small for the next block's.
    lost = block.backward_bytes() if mesh.pp > 1 else 0
    moments = {
        "backward of a block": (backward, backward + lost),
        "gradient of the embedding": (weights.root_gradient_bytes + work.whole_stream_bytes,) * 2,
    }
    if logits is not None:
        at_once = kept + weights.whole_bytes
        moments["loss"] = (
            at_once + logits.peak_bytes,
            at_once + logits.laid_out_bytes + _held_back_bytes(config, work),
        )
    moment = max(moments, key=lambda name: moments[name][0])
    peak = static.static_bytes + moments[moment][0] + weights.gathering_bytes
    reserved = (
        static.static_bytes + max(laid for _, laid in moments.values()) + weights.gathering_bytes + _WORKSPACES_BYTES
    )
    return replace(
        static,
        activations_bytes=kept + block.backward_bytes(),
        logits_bytes=0 if logits is None else logits.peak_bytes,
        communication_bytes=weights.gathering_bytes
        + max(weights.whole_bytes + weights.block_gradient_bytes, weights.root_gradient_bytes),
        peak_bytes=peak,
        reserved_bytes=reserved,
        moment=moment,
        fits=reserved + _OUTSIDE_BYTES <= static.capacity_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Whole weights and gradients beside the shards: none without FSDP.

    `whole_bytes`: gathered weights, and under a pipeline gradients that wait for the last microbatch.
    """

    whole_bytes: int
    gathering_bytes: int
    block_gradient_bytes: int
    root_gradient_bytes: int


def _weights(config: Config, mesh: Mesh, work: Work, groups: Groups) -> _Weights:
    """Embedding, norm and head are one group, the root's, which is not freed after forward.

    So it was until 2025, when most published runs were made; since then the embedding is a group of its
    own, which is 2 GiB less for Llama 3 8B. Its gradients wait for the last block's. Copies of a model (DDP) have
    buckets of gradients beside these, and autocast's weights.
    """
    root, width = groups.embedding + groups.head, work.width_bytes
    if mesh.fsdp == 1:
        copies = groups.total * (FLOAT32 + width) if mesh.dp_replicate > 1 else 0
        return _Weights(whole_bytes=copies, gathering_bytes=0, block_gradient_bytes=0, root_gradient_bytes=copies)
    float8, reduced = config.quantize.dense.float8, BYTES[config.training.mixed_precision_reduce]
    block = groups.block * (1 if float8.enable and float8.enable_fsdp_float8_all_gather else width)
    reshard = config.parallelism.fsdp_reshard_after_forward
    keeps = reshard == "never" or (reshard == "default" and mesh.pp > 1)
    gathered = root * width + block * (groups.blocks if keeps else min(1, groups.blocks))
    if mesh.pp > 1:
        # Summed in float32 over microbatches; scattered when none is left.
        sums, before = groups.total * reduced, groups.block * width
    else:
        # The block's own, its copy for the reduce-scatter, and that of the block before, which is under way.
        sums, before = 0, groups.block * (width + 2 * reduced) + groups.head * width
    return _Weights(
        whole_bytes=gathered + sums,
        gathering_bytes=block + max(block, root * width),
        block_gradient_bytes=before,
        root_gradient_bytes=gathered + max(sums, root * (width + reduced) + groups.block * reduced),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """What one block keeps and makes."""

    work: Work
    recompute: Recompute
    keeps_attention: bool

    def kept_bytes(self, layers: Sequence[int]) -> int:
        """What a microbatch leaves in these layers from forward to backward."""
        least, whole = self.work.stream_bytes, block_bytes(self.work)
        match self.recompute.mode:
            case "none":
                return len(layers) * whole
            case "full":
                return len(layers) * least
            case "memory_budget":
                assert self.recompute.budget is not None, "a memory budget has a share"
                return len(layers) * (least + int(self.recompute.budget * (whole - least)))
            case "selective":
                if self.recompute.every is None:
                    return len(layers) * self._selective_bytes()
                dropped = sum(map(self.recompute.repeats, layers))
                return dropped * least + (len(layers) - dropped) * whole

    def backward_bytes(self) -> int:
        """What is computed again of one block, and gradients of activations where they are widest."""
        work = self.work
        every_nth = self.recompute.mode == "selective" and self.recompute.every is not None
        kept = work.stream_bytes if every_nth else self.kept_bytes((0,))
        gradients = 3 * work.hidden_bytes + work.whole_stream_bytes + work.stream_bytes
        # Tensor ranks' pieces of a sequence lie on its second dimension: gathered and summed, they are put in order.
        in_order = 2 * work.whole_stream_bytes if work.tp > 1 else 0
        return max(0, block_bytes(work) - kept) + gradients + in_order

    def _selective_bytes(self) -> int:
        """Every second of the products wq, wk, wv, wo, w1, w3, w2; attention; sums over tensor ranks; the input.

        Eagerly the result of w2 is kept too, before its sum and after it, although nobody asks for it:
        the compiler sees that.
        """
        work = self.work
        kept = work.stream_bytes + work.query_bytes + work.key_bytes + work.hidden_bytes
        if self.keeps_attention:
            kept += work.query_bytes + work.tokens * -(-work.shape.n_heads // work.tp) * FLOAT32  # and its log-sum-exp
        if work.tp > 1:
            kept += work.stream_bytes
        if not work.compiled:
            kept += work.whole_stream_bytes + (work.stream_bytes if work.tp > 1 else 0)
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logits:
    """Bytes of logits and all that is made of them: at their fullest, as laid out, and from forward to backward."""

    peak_bytes: int
    laid_out_bytes: int
    kept_bytes: int

    @classmethod
    def of(cls, work: Work) -> _Logits:
        """Cross entropy of float32 logits, by torch or by DTensor's loss parallel.

        Torch keeps the log-softmax; the middle of backward has its gradient and that of the logits
        beside it. Loss parallel (torch/distributed/tensor/parallel/loss.py) has the log-softmax, the one-hot
        labels, its exponential and their sum. In chunks the logits and each chunk's log-softmax are
        kept, and only one chunk has a float32 copy. Compiled: the logits and their gradient.
        """
        columns = -(-work.shape.vocab_size // (work.tp if work.loss_parallel else 1))
        elements, width = work.tokens * columns, work.width_bytes
        hole = width if width < FLOAT32 else 0
        if work.compiled_loss:
            peak = laid_out = 2 * width
            kept = width
        elif work.loss_chunks > 1:
            kept = width + FLOAT32
            return cls(
                peak_bytes=elements * kept + elements * FLOAT32 // work.loss_chunks,
                laid_out_bytes=elements * kept + elements * FLOAT32 // work.loss_chunks,
                kept_bytes=elements * kept,
            )
        else:
            peak = (4 if work.tp > 1 and work.loss_parallel else 3) * FLOAT32
            laid_out, kept = peak + hole, FLOAT32
        return cls(peak_bytes=elements * peak, laid_out_bytes=elements * laid_out, kept_bytes=elements * kept)


def _held_back_bytes(config: Config, work: Work) -> int:
    """Whole streams that tensor parallel has gathered and is about to scatter: NCCL's stream has a hand on them still.

    With async TP they lie in symmetric memory, outside of the allocator.
    """
    if work.tp == 1 or config.parallelism.enable_async_tensor_parallel:
        return 0
    return 2 * work.whole_stream_bytes


def _between_stages_bytes(work: Work, held: Sequence[int], microbatches: int, *, first: bool, last: bool) -> int:
    """Outputs of stages until their gradient is there, and the buffers to receive in, one for each microbatch.

    torch.distributed.pipelining makes all of them beforehand; an input in flight is counted with its block.
    """
    outputs = sum(held) * work.stream_bytes
    inputs = sum(microbatches - count for count in held[1 if first else 0 :])
    gradients = microbatches * (len(held) - (1 if last else 0))
    return outputs + (inputs + gradients) * work.stream_bytes
