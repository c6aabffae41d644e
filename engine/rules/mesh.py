"""Rules P107, P110 and P122 to P129: the model's shape, and how its heads, widths and sequences lie on the mesh."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from engine.facts import Facts
from engine.legal import choice, divisors, largest, near_divisors, neighbours
from engine.rules.degrees import CP, TP
from engine.rules.row import ON_TORCH, Rule
from engine.shapes import FLAVORS


def _flavor_words(f: Facts) -> dict[str, object]:
    known = FLAVORS[f.config.model.name]
    return {"known": choice(known), "close": _close_flavor(f)}


def _close_flavor(f: Facts) -> str:
    known = {name.lower(): name for name in FLAVORS[f.config.model.name]}
    close = get_close_matches(f.config.model.flavor.lower(), known, n=1, cutoff=0.0)
    return known[close[0]]


def _multiple(
    key: str, value: Callable[[Facts], int], step: Callable[[Facts], int]
) -> Callable[[Facts], dict[str, Any]]:
    """An edit that sets `key` to the next multiple of `step` above."""
    return lambda f: {key: neighbours(value(f), step(f))[-1]}


MESH_RULES: tuple[Rule, ...] = (
    Rule(
        id="P107",
        key="model.shape.n_heads",
        also=("model.shape.dim",),
        needs="flavor",
        broken=lambda f: f.known_shape.head_dim == 0,
        message="{shape.n_heads} heads do not divide dim = {shape.dim}, and head_dim is not given",
        fix="set n_heads to {legal}, or give head_dim",
        words=lambda f: {"legal": choice(near_divisors(f.known_shape.dim, f.known_shape.n_heads))},
        edit=lambda f: {"model.shape.head_dim": max(2, f.known_shape.dim // f.known_shape.n_heads // 2 * 2)},
        why="without its own key, the width of a head is dim / n_heads",
    ),
    Rule(
        id="P110",
        key="training.seq_len",
        also=(TP, CP),
        needs="degrees",
        broken=lambda f: f.config.training.seq_len % f.sequence_pieces != 0,
        message="seq_len = {training.seq_len} does not split into {sequence_pieces} equal pieces over {cp} context and "
        "{tp} tensor ranks",
        fix="set seq_len to {near}",
        words=lambda f: {"near": choice(neighbours(f.config.training.seq_len, f.sequence_step))},
        edit=_multiple("training.seq_len", lambda f: f.config.training.seq_len, lambda f: f.sequence_step),
        why="head-tail balance cuts a sequence in 2 x cp pieces, and what a context rank holds is split again over tp",
    ),
    Rule(
        id="P122",
        key=CP,
        needs="split",
        broken=lambda f: (
            f.config.parallelism.context_parallel_method == "ulysses"
            and f.cp > 1
            and f.known_shape.n_kv_heads % f.tp == 0
            and f.known_shape.n_heads // f.tp % f.cp != 0
        ),
        message="context_parallel_degree = {cp} does not divide the {heads} query heads that each tensor rank "
        "holds, as ulysses needs",
        fix="set it to {legal}, or context_parallel_method to allgather",
        words=lambda f: {
            "heads": f.known_shape.n_heads // f.tp,
            "legal": choice(divisors(f.known_shape.n_heads // f.tp)),
        },
        edit=lambda _: {"parallelism.context_parallel_method": "allgather"},
        why="ulysses exchanges tokens for whole heads over the context ranks",
    ),
    Rule(
        id="P123",
        key=TP,
        needs="split",
        broken=lambda f: f.known_shape.ffn_dim % f.tp != 0,
        message="tensor_parallel_degree = {tp} does not divide ffn_dim = {shape.ffn_dim}",
        fix="set it to {legal}, or ffn_dim to {near}",
        words=lambda f: {
            "legal": choice(value for value in f.legal_tp if f.known_shape.ffn_dim % value == 0),
            "near": choice(neighbours(f.known_shape.ffn_dim, f.tp)),
        },
        edit=lambda f: {
            TP: largest([value for value in f.legal_tp if f.known_shape.ffn_dim % value == 0], f.tp),
        },
        why="tensor parallel gives every rank an equal piece of the feed-forward",
    ),
    Rule(
        id="P124",
        key=TP,
        needs="mesh",
        severity="warning",
        broken=lambda f: f.known_cluster.nodes > 1 and f.known_cluster.gpus_per_node % f.tp != 0,
        message="tensor_parallel_degree = {tp} crosses nodes of {cluster.gpus_per_node} GPUs",
        fix="set it to {legal}",
        words=lambda f: {"legal": choice(divisors(f.known_cluster.gpus_per_node))},
        edit=lambda f: {TP: largest(divisors(f.known_cluster.gpus_per_node), f.tp)},
        why="tensor parallel communicates in every layer, and links between nodes are many times slower than NVLink",
    ),
    Rule(
        id="P125",
        key="model.flavor",
        broken=lambda f: f.shape is None,
        message="{model.name} has no flavor {model.flavor}",
        fix="set it to {close}; known are {known}",
        words=_flavor_words,
        edit=lambda f: {"model.flavor": _close_flavor(f)},
        why="a flavor is a published size of its family; [model.shape] changes single numbers of one",
    ),
    Rule(
        id="P126",
        key="model.shape.n_kv_heads",
        also=("model.shape.n_heads",),
        needs="flavor",
        broken=lambda f: f.known_shape.n_heads % f.known_shape.n_kv_heads != 0,
        message="n_kv_heads = {shape.n_kv_heads} does not divide the {shape.n_heads} query heads",
        fix="set n_kv_heads to {legal}",
        words=lambda f: {"legal": choice(divisors(f.known_shape.n_heads))},
        edit=lambda f: {"model.shape.n_kv_heads": largest(divisors(f.known_shape.n_heads), f.known_shape.n_kv_heads)},
        why="in grouped-query attention every KV head serves equally many query heads",
    ),
    Rule(
        id="P127",
        key="model.shape.head_dim",
        also=("model.shape.n_heads", "model.shape.dim"),
        needs="flavor",
        broken=lambda f: f.known_shape.head_dim % 2 != 0,
        message="head_dim = {shape.head_dim} is odd",
        fix="set head_dim to {near}",
        words=lambda f: {"near": choice(neighbours(f.known_shape.head_dim, 2))},
        edit=_multiple("model.shape.head_dim", lambda f: f.known_shape.head_dim, lambda _: 2),
        why="rotary positions turn the numbers of a head in pairs",
    ),
    Rule(
        id="P128",
        key="model.shape.vocab_size",
        also=(TP, "model.shape.dim"),
        needs="mesh",
        stacks=("titan",),
        broken=lambda f: (
            f.has("model")
            and f.known_shape.vocab_size % f.tp != 0
            and _fills(f.known_shape.vocab_size, f.tp)
            and f.known_shape.dim % f.known_mesh.fsdp != 0
        ),
        message="a vocabulary of {shape.vocab_size} does not divide over {tp} tensor ranks, nor dim = {shape.dim} over "
        "the {mesh.fsdp} ranks that shard it",
        fix="set model.shape.vocab_size to {near}, or degrees of which one divides",
        words=lambda f: {"near": choice(neighbours(f.known_shape.vocab_size, f.tp))},
        edit=_multiple("model.shape.vocab_size", lambda f: f.known_shape.vocab_size, lambda f: f.tp),
        why="rows that lie unevenly on tensor ranks are sharded by columns, and FSDP cuts columns only evenly",
    ),
    Rule(
        id="P129",
        key=TP,
        needs="split",
        stacks=ON_TORCH,
        broken=lambda f: not _fills(f.known_shape.vocab_size, f.tp),
        message="tensor_parallel_degree = {tp} leaves a rank without a piece of the {shape.vocab_size} tokens of the "
        "vocabulary",
        fix="set it to {legal}",
        words=lambda f: {"legal": choice(_filled(f))},
        edit=lambda f: {TP: largest(_filled(f), f.tp)},
        why="pieces are of equal size but the last, as torch cuts them, and FSDP takes no weight without elements",
    ),
)


def _fills(vocab_size: int, tp: int) -> bool:
    """Whether each of `tp` ranks gets a piece of the vocabulary, cut as `torch.chunk` does."""
    return -(-vocab_size // tp) * (tp - 1) < vocab_size


def _filled(f: Facts) -> list[int]:
    """The legal degrees that leave no rank without a piece of the vocabulary; 1 is one."""
    return [value for value in f.legal_tp if _fills(f.known_shape.vocab_size, value)]
