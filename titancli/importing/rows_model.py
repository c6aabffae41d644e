"""Keys of torchtitan that say what is computed: model, batch, optimizer, precision.

Knows their defaults in torchtitan 0.2.0 to 0.2.2. Does not know how they are turned into a file (convert).
"""

from __future__ import annotations

import math
import os

from engine.config import DATASETS
from titancli.importing.models import FLAVOR, FLAVOR_KEYS, NAME, NORM, flavor_outcome, name_outcome, norm_outcome
from titancli.importing.precision import (
    CONVERTERS,
    FLOAT8,
    MX,
    all_gather_outcome,
    converters_outcome,
    filter_outcome,
    recipe_outcome,
    told_where_off,
    uses_float8,
    uses_mx,
)
from titancli.importing.row import Became, Given, Gone, Outcome, Refused, Row, dropped, refused, same, turned

_ASSETS, _TOKENIZER = "model.hf_assets_path", "model.tokenizer_path"
_DATASET, _PATH = "training.dataset", "training.dataset_path"
_STEPS, _TOTAL = "training.steps", "lr_scheduler.total_steps"
_PARAM = "training.mixed_precision_param"
_FLOAT8, _MX = "quantize.linear.float8", "quantize.linear.mx"
_OWN_TOKENIZER = "torchtitan's default is the test tokenizer of its own repository"
_TEXT_OF_C4 = ("c4", "c4_test", "c4_validation")
YOUR_TEXT = "--{section}.dataset jsonl --{section}.dataset_path PATH"


def dataset_outcome(given: Given, section: str) -> Outcome:
    """What becomes of the name of a corpus, in [training] or [validation]: titan reads files that are here."""
    key = f"{section}.dataset"
    name, way_out = str(given[key]), f"give {YOUR_TEXT.format(section=section)}"
    if key in given.over:
        return Gone(f"--{key} goes before it")
    if name in DATASETS:
        return Became({key: name})
    if name.lower() not in _TEXT_OF_C4:
        return Refused(f"{name} is read by code of your own, and titan reads files", way_out)
    if given[f"{section}.dataset_path"] is not None:
        note = f"was {name}; titan reads files *.jsonl, a JSON object with text on each line, unpacked"
        return Became({key: "jsonl"}, note)
    note = f"stands in for {name}, which torchtitan loads from the Hugging Face hub: titan reads local files; {way_out}"
    return Became({key: "stdlib"}, note)


def _assets(given: Given) -> Outcome:
    if given[_TOKENIZER]:
        return Gone("model.tokenizer_path goes before it in torchtitan")
    path = given[_ASSETS]
    if path is None:
        return Became({"data.tokenizer": "bytes"}, _OWN_TOKENIZER)
    missing = not os.path.exists(os.path.expanduser(path))
    return Became({_ASSETS: path}, f"{path} is not here: titan launch needs its tokenizer.json" if missing else "")


def _tokenizer(given: Given) -> Outcome:
    path = given[_TOKENIZER]
    if not path:
        return Gone("it is empty")
    folder = os.path.dirname(path) or "." if path.endswith(".model") else path
    return Became({_ASSETS: folder}, "a folder with tokenizer.json; tokenizer.model is not read")


def _max_norm(given: Given) -> Outcome:
    norm = given["training.max_norm"]
    if norm == 0:
        fix = "give the norm that is meant, or inf for no clipping"
        return Refused("torchtitan scales every gradient to 0 with it, and titan clips none", fix)
    if norm == math.inf:
        return Became({"training.max_norm": 0.0}, "was inf: 0 switches clipping off")
    return Became({"training.max_norm": norm})


def _computes_in(given: Given) -> Outcome:
    """torchtitan has no mixed precision under tensor or pipeline parallel where nothing is sharded."""
    cut = max(int(given[f"parallelism.{name}_parallel_degree"]) for name in ("tensor", "pipeline")) > 1
    if cut and not given.sharded and given[_PARAM] != given["training.dtype"]:
        note = f"was {given[_PARAM]}, which torchtitan ignores where nothing is sharded"
        return Became({_PARAM: given["training.dtype"]}, note)
    return Became({_PARAM: given[_PARAM]})


def _total_steps(given: Given) -> Outcome:
    total, steps = given[_TOTAL], given[_STEPS]
    if total is None or total == steps:
        return Gone("the learning rate follows training.steps, and so it does there")
    fix = f"leave it out, or set training.steps to {total}"
    return Refused(f"the learning rate follows training.steps = {steps}, not {total}", fix)


def _mx_recipe(given: Given) -> Outcome:
    name = given[f"{_MX}.recipe_name"]
    name = "mxfp8_cublas" if name == "mxfp8" else name
    if name in ("mxfp8_cublas", "mxfp8_emulated"):
        return Became({f"{MX}.recipe_name": name})
    if not uses_mx(given):
        return Gone("no converter uses it")
    return Refused(f"titan has no recipe {name}", "write mxfp8_cublas or mxfp8_emulated")


_OFFLOAD = "parameters and optimizer states stay on the GPUs here"
_CLIPS = "titan clips gradients, and so updates after backward"

_ROWS: tuple[Row, ...] = (
    turned(NAME, "text", "llama3", name_outcome, to=(NAME,)),
    turned(FLAVOR, "text", "debugmodel", flavor_outcome, to=FLAVOR_KEYS),
    turned(_ASSETS, "text", None, _assets, to=(_ASSETS, "data.tokenizer")),
    turned(_TOKENIZER, "text", None, _tokenizer, to=(_ASSETS,)),
    turned(CONVERTERS, "texts", [], converters_outcome, to=(f"{FLOAT8}.enable", f"{MX}.enable")),
    dropped("model.print_after_conversion", "boolean", False),
    turned(NORM, "text", "rmsnorm", norm_outcome),
    same("optimizer.name", "text", "AdamW", choices=("AdamW", "Adam")),
    same("optimizer.lr", "number", 8e-4),
    same("optimizer.beta1", "number", 0.9),
    same("optimizer.beta2", "number", 0.95),
    same("optimizer.eps", "number", 1e-8),
    same("optimizer.weight_decay", "number", 0.1),
    same("optimizer.implementation", "text", "fused", choices=("fused", "foreach", "for-loop")),
    refused("optimizer.early_step_in_backward", "boolean", False, _CLIPS, "set it to false"),
    same("lr_scheduler.warmup_steps", "whole", 200),
    turned(_TOTAL, "whole", None, _total_steps),
    same("lr_scheduler.decay_ratio", "number", None),
    same("lr_scheduler.decay_type", "text", "linear", choices=("linear", "sqrt", "cosine")),
    same("lr_scheduler.min_lr_factor", "number", 0.0),
    turned(_DATASET, "text", "c4_test", lambda given: dataset_outcome(given, "training"), to=(_DATASET,)),
    same(_PATH, "text", None),
    same("training.local_batch_size", "whole", 8),
    same("training.global_batch_size", "whole", -1),
    same("training.seq_len", "whole", 2048),
    turned("training.max_norm", "number", 1.0, _max_norm, to=("training.max_norm",)),
    same(_STEPS, "whole", 10_000),
    refused("training.enable_cpu_offload", "boolean", False, _OFFLOAD, "set it to false"),
    same("training.dtype", "text", "float32", choices=("float32", "bfloat16")),
    turned(_PARAM, "text", "bfloat16", _computes_in, to=(_PARAM,), choices=("bfloat16", "float32")),
    same("training.mixed_precision_reduce", "text", "float32", choices=("float32",)),
    dropped("training.gc_freq", "whole", 50),
    dropped("training.gc_debug", "boolean", False),
    same("training.seed", "whole", None, to="debug.seed"),
    same("training.deterministic", "boolean", False, to="debug.deterministic"),
    dropped("training.debug_moe_force_load_balance", "boolean", False),
    same("training.dataloader.num_workers", "whole", 0, to="data.num_workers"),
    dropped("training.dataloader.persistent_workers", "boolean", False),
    dropped("training.dataloader.pin_memory", "boolean", False),
    same("training.dataloader.prefetch_factor", "whole", None, to="data.prefetch"),
    turned(
        f"{_FLOAT8}.enable_fsdp_float8_all_gather",
        "boolean",
        False,
        all_gather_outcome,
        to=(f"{FLOAT8}.enable_fsdp_float8_all_gather",),
    ),
    dropped(f"{_FLOAT8}.precompute_float8_dynamic_scale_for_fsdp", "boolean", False),
    turned(
        f"{_FLOAT8}.recipe_name",
        "text",
        None,
        recipe_outcome,
        to=(f"{FLOAT8}.recipe_name",),
        choices=("tensorwise", "rowwise", "rowwise_with_gw_hp"),
    ),
    turned(f"{_FLOAT8}.filter_fqns", "texts", [], filter_outcome, to=(f"{FLOAT8}.filter_fqns",), matters=uses_float8),
    same(f"{_FLOAT8}.emulate", "boolean", False, to=f"{FLOAT8}.emulate"),
    dropped(f"{_MX}.mxfp8_dim1_cast_kernel_choice", "text", "triton"),
    turned(f"{_MX}.recipe_name", "text", "mxfp8_cublas", _mx_recipe, to=(f"{MX}.recipe_name",)),
    same(f"{_MX}.filter_fqns", "texts", ["output"], to=f"{MX}.filter_fqns"),
    dropped("quantize.grouped_mm.float8.fqns", "texts", []),
    dropped("quantize.grouped_mm.mx.recipe_name", "text", "mxfp8"),
    dropped("quantize.grouped_mm.mx.fqns", "texts", []),
    same("debug.seed", "whole", None),
    same("debug.deterministic", "boolean", False),
    dropped("debug.deterministic_warn_only", "boolean", False),
    dropped("debug.moe_force_load_balance", "boolean", False),
)
MODEL_ROWS = tuple(map(told_where_off, _ROWS))
"""[model], [optimizer], [lr_scheduler], [training], [quantize] and [debug], in torchtitan's order."""
