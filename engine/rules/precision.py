"""Rules Q3xx: low precision, torch.compile and what is fused under it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from engine.config import Float8, Mx
from engine.facts import Facts, Linear
from engine.legal import choice, neighbours
from engine.rules.degrees import TP
from engine.rules.row import ON_TORCH, Rule
from engine.rules.training import compiles_model
from engine.shapes import block_parameters

COMPONENTS = ("model", "loss")

# What cannot be in force while a law of low precision is broken: the config asks for one of them.
_LOW = ("quantize.dense.float8.enable", "quantize.dense.mx.enable")

Scheme: TypeAlias = Literal["float8", "mx"]


def _asked(f: Facts) -> tuple[Float8 | Mx, int]:
    found = f.low_precision
    assert found is not None, "rules about low precision are worded only where it is asked for"
    return found


def _scheme(f: Facts) -> str:
    return "float8" if isinstance(_asked(f)[0], Float8) or f.config.quantize.dense.float8.enable else "MXFP8"


def _cut_widths(f: Facts, tp: int) -> list[str]:
    """Widths that are whole blocks before tensor parallel and not after it, in words."""
    section, block = _asked(f)
    found: list[str] = []
    for layer in f.linears(section):
        if layer.k % block or layer.n % block:
            continue  # skipped as a whole, whatever the degree; the setting lists it
        for whole, piece in zip((layer.k, layer.n), layer.after(tp), strict=True):
            if piece % block:
                rest = f" ({piece} % {block} = {piece % block})" if whole % tp == 0 else ""
                found.append(f"{layer.name} {whole} / {tp} = {whole / tp:g}{rest}")
    return found


def _width_broken(f: Facts) -> bool:
    if f.low_precision is None or f.known_shape.ffn_dim % f.tp or f.tp not in f.legal_tp:
        return False
    return bool(_cut_widths(f, f.tp))


def _whole_widths(f: Facts) -> list[int]:
    return [tp for tp in f.legal_tp if f.known_shape.ffn_dim % tp == 0 and not _cut_widths(f, tp)]


def _width_words(f: Facts) -> dict[str, object]:
    return {
        "scheme": _scheme(f),
        "block": _asked(f)[1],
        "step": _asked(f)[1] * f.tp,
        "widths": ", ".join(_cut_widths(f, f.tp)),
        "legal": choice(_whole_widths(f)),
    }


def _tokens_broken(f: Facts) -> bool:
    found = f.low_precision
    if found is None or not f.needs_whole_token_blocks or f.config.training.seq_len % f.cp:
        return False
    return f.microbatch_tokens % found[1] != 0


def _tokens_words(f: Facts) -> dict[str, object]:
    block = _asked(f)[1]
    return {
        "scheme": _scheme(f),
        "block": block,
        "rest": f"{f.microbatch_tokens} % {block} = {f.microbatch_tokens % block}",
        "near": choice(neighbours(f.config.training.seq_len, f.sequence_step)),
    }


def _head_is_cut(f: Facts) -> bool:
    """Whether the head is in low precision, and a piece of the sequence leaves it no whole blocks of tokens."""
    found = f.low_precision
    if found is None or not f.needs_whole_token_blocks or f.config.training.loss_chunks == 1:
        return False
    section, block = found
    heads = [linear for linear in f.linears(section) if linear.name == "output"]
    taken = any(linear.k % block == linear.n % block == 0 for linear in heads)
    return taken and f.microbatch_tokens % block == 0 and any(piece % block for piece in _loss_pieces(f))


def _loss_pieces(f: Facts) -> list[int]:
    """Tokens that the head sees at once: its pieces of the sequence differ by one token at most (model/loss)."""
    local = f.config.training.seq_len // f.cp
    shorter, longer = divmod(local, min(local, f.config.training.loss_chunks))
    return [f.microbatch_size * length for length in ((shorter, shorter + 1) if longer else (shorter,))]


def _low_precision_section(f: Facts) -> str:
    return f"quantize.dense.{'float8' if isinstance(_asked(f)[0], Float8) else 'mx'}"


def _unknown_components(f: Facts) -> list[str]:
    return [name for name in f.config.compile.components if name not in COMPONENTS]


def _known_components(f: Facts) -> tuple[str, ...]:
    """The components with each unknown name replaced by the nearest known one, or left out."""
    names: list[str] = []
    for name in f.config.compile.components:
        close = [name] if name in COMPONENTS else get_close_matches(name, COMPONENTS, n=1)
        names += [found for found in close if found not in names]
    return tuple(names)


def _compile_edit(f: Facts) -> dict[str, Any]:
    components = f.config.compile.components
    return {
        "compile.enable": True,
        "compile.components": components if "model" in components else ("model", *components),
    }


def _section(f: Facts, scheme: Scheme) -> Float8 | Mx:
    dense = f.config.quantize.dense
    return dense.float8 if scheme == "float8" else dense.mx


def _candidates(f: Facts, scheme: Scheme) -> tuple[Linear, ...]:
    """The linear layers that the filters leave."""
    return f.linears(_section(f, scheme))


def _none_rule(rule_id: str, scheme: Scheme, name: str, block: int) -> Rule:
    def words(f: Facts) -> dict[str, object]:
        left = ", ".join(f"{linear.name} ({linear.k} x {linear.n})" for linear in _candidates(f, scheme))
        if left:
            return {
                "reason": f"none has both widths in multiples of {block}: {left}",
                "way_out": f"widths to multiples of {block}",
            }
        return {"reason": "filter_fqns leaves out all of them", "way_out": "fewer names in filter_fqns"}

    return Rule(
        id=rule_id,
        key=f"quantize.dense.{scheme}.enable",
        needs="model",
        broken=lambda f: (
            _section(f, scheme).enable
            and not any(linear.k % block == linear.n % block == 0 for linear in _candidates(f, scheme))
        ),
        message=f"{name} is enabled, and no linear layer takes it: {{reason}}",
        fix="set it to false, or {way_out}",
        words=words,
        edit=lambda _: {f"quantize.dense.{scheme}.enable": False},
        why="a run that is told to be in low precision would train in high precision, as fast as without",
    )


def _nameless(f: Facts, scheme: Scheme) -> list[str]:
    """The parts of names in filter_fqns that no linear layer has in its name."""
    shape = f.known_shape
    below = [name.removesuffix(".weight") for name, weight in block_parameters(shape).items() if len(weight.shape) == 2]
    names = ["output", *(f"layers.{layer}.{name}" for layer in range(shape.n_layers) for name in below)]
    return [part for part in _section(f, scheme).filter_fqns if not any(part in name for name in names)]


def _nameless_rule(rule_id: str, scheme: Scheme) -> Rule:
    key = f"quantize.dense.{scheme}.filter_fqns"
    return Rule(
        id=rule_id,
        key=key,
        needs="model",
        severity="warning",
        broken=lambda f: _section(f, scheme).enable and bool(_nameless(f, scheme)),
        message="filter_fqns leaves no layer out for {names}: no linear layer has that in its name",
        fix="name parts of layers.0.attention.wq, wk, wv, wo, of layers.0.feed_forward.w1, w2, w3, or output",
        words=lambda f: {"names": choice(_nameless(f, scheme))},
        edit=lambda f: {
            key: tuple(part for part in _section(f, scheme).filter_fqns if part not in _nameless(f, scheme))
        },
        why="a misspelled name would leave a layer in low precision that was meant to stay in high precision",
    )


PRECISION_RULES: tuple[Rule, ...] = (
    Rule(
        id="Q301",
        key="training.seq_len",
        also=("quantize.dense.float8.enable", "quantize.dense.mx.enable"),
        rejects=_LOW,
        needs="pipeline",
        broken=_tokens_broken,
        message="{scheme} multiplies blocks of {block} tokens, and a rank sees {microbatch_tokens} at once ({rest})",
        fix="set seq_len to {near}",
        words=_tokens_words,
        edit=lambda f: {"training.seq_len": neighbours(f.config.training.seq_len, f.sequence_step)[-1]},
        why="the weight gradient sums over tokens (batch x seq_len / cp), and the kernels take whole blocks of them",
    ),
    Rule(
        id="Q302",
        key=TP,
        rejects=_LOW,
        needs="split",
        broken=_width_broken,
        message="tensor_parallel_degree = {tp} leaves {scheme} widths that are no multiples of {block}: {widths}",
        fix="set it to {legal}, or the widths to multiples of {step}",
        words=_width_words,
        edit=lambda f: {TP: max(value for value in _whole_widths(f) if value < f.tp)},
        why="both widths of a linear layer, after tensor parallel, are multiples of the block of its kernels",
    ),
    Rule(
        id="Q303",
        key="quantize.dense.mx.enable",
        rejects=("quantize.dense.float8.enable",),
        broken=lambda f: f.config.quantize.dense.float8.enable and f.config.quantize.dense.mx.enable,
        message="float8 and MXFP8 are both enabled for the same linear layers",
        fix="set quantize.dense.mx.enable or quantize.dense.float8.enable to false",
        edit=lambda _: {"quantize.dense.mx.enable": False},
        why="a linear layer is computed in one precision",
    ),
    Rule(
        id="Q304",
        key="quantize.dense.float8.enable_fsdp_float8_all_gather",
        broken=lambda f: (
            f.config.quantize.dense.float8.enable
            and f.config.quantize.dense.float8.enable_fsdp_float8_all_gather
            and f.config.quantize.dense.float8.recipe_name != "tensorwise"
        ),
        message="enable_fsdp_float8_all_gather does not go with recipe_name = {quantize.dense.float8.recipe_name}",
        fix="set enable_fsdp_float8_all_gather to false, or recipe_name to tensorwise",
        edit=lambda _: {"quantize.dense.float8.enable_fsdp_float8_all_gather": False},
        why="a shard can be cast before the gather only with the one scale of the whole tensor",
    ),
    Rule(
        id="Q305",
        key="compile.components",
        broken=lambda f: bool(_unknown_components(f)),
        message="compile.components has no {names}",
        fix="known are model and loss",
        words=lambda f: {"names": choice(_unknown_components(f))},
        edit=lambda f: {"compile.components": _known_components(f)},
        why="a component that does not exist would be compiled by nobody",
    ),
    Rule(
        id="Q306",
        key="parallelism.enable_async_tensor_parallel",
        stacks=ON_TORCH,
        broken=lambda f: f.config.parallelism.enable_async_tensor_parallel and f.tp > 1 and not compiles_model(f),
        message="enable_async_tensor_parallel needs compile of the model",
        fix="set compile.enable to true with model among its components, or enable_async_tensor_parallel to false",
        edit=_compile_edit,
        why="gradients of products side by side go into one fused product, and only the compiler lays them there "
        "without a copy",
    ),
    Rule(
        id="Q307",
        key="parallelism.enable_async_tensor_parallel",
        severity="warning",
        broken=lambda f: f.config.parallelism.enable_async_tensor_parallel and f.tp == 1,
        message="enable_async_tensor_parallel does nothing with tensor_parallel_degree = 1",
        fix="set it to false, or tensor_parallel_degree to 2 or more",
        edit=lambda _: {"parallelism.enable_async_tensor_parallel": False},
        why="without tensor parallel there is no communication to overlap",
    ),
    Rule(
        id="Q308",
        key="training.loss_chunks",
        rejects=_LOW,
        needs="pipeline",
        broken=_head_is_cut,
        message="loss_chunks = {training.loss_chunks} leaves the output head {piece} tokens at once, and {scheme} "
        "multiplies blocks of {block}",
        fix="set it to 1, or add output to {section}.filter_fqns",
        words=lambda f: {
            "piece": next(piece for piece in _loss_pieces(f) if piece % _asked(f)[1]),
            "scheme": _scheme(f),
            "block": _asked(f)[1],
            "section": _low_precision_section(f),
        },
        edit=lambda f: {f"{_low_precision_section(f)}.filter_fqns": (*_asked(f)[0].filter_fqns, "output")},
        why="the weight gradient of the head sums over the tokens of one piece, and the kernels take whole blocks",
    ),
    Rule(
        id="Q309",
        key="quantize.dense.float8.recipe_name",
        rejects=("quantize.dense.float8.enable",),
        needs="cluster",
        broken=lambda f: (
            f.config.quantize.dense.float8.enable
            and not f.config.quantize.dense.float8.emulate
            and f.config.quantize.dense.float8.recipe_name != "tensorwise"
            and f.config.training.mixed_precision_param == "float32"
            and f.known_cluster.gpu.has_mxfp8
        ),
        message="recipe_name = {quantize.dense.float8.recipe_name} gives no float32 on {cluster.gpu.name}",
        fix="set training.mixed_precision_param to bfloat16, or recipe_name to tensorwise",
        edit=lambda _: {"training.mixed_precision_param": "bfloat16"},
        why="the row-scaled kernels of Blackwell write 16 bits only",
    ),
    _none_rule("Q310", "float8", "float8", 16),
    _none_rule("Q311", "mx", "MXFP8", 32),
    _nameless_rule("Q312", "float8"),
    _nameless_rule("Q313", "mx"),
)
