"""The models of torchtitan 0.2 that titan has too, flavor by flavor, and why it has not the others.

Knows names, and the numbers in which torchtitan's debug models differ from titan's. The numbers of all other flavors
are those that the models' authors published, and are the same in both (engine/shapes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.reading.nearest import nearest
from titancli.importing.row import Became, Given, Gone, Outcome, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A flavor of titan that is the same model, numbers that differ, and whether documents see only themselves."""

    name: str
    shape: Mapping[str, Any] = field(default_factory=dict)
    masks_documents: bool = False


_LLAMA_DEBUG: Mapping[str, Any] = {"n_kv_heads": 16}
_QWEN_DEBUG: Mapping[str, Any] = {"n_layers": 8, "head_dim": 128, "ffn_dim": 3072, "tie_embeddings": True}

MODELS: Mapping[str, Mapping[str, Flavor]] = {
    "llama3": {
        "debugmodel": Flavor(name="debugmodel", shape=_LLAMA_DEBUG),
        "debugmodel_flex_attn": Flavor(name="debugmodel", shape=_LLAMA_DEBUG, masks_documents=True),
        "debugmodel_varlen_attn": Flavor(name="debugmodel", shape=_LLAMA_DEBUG, masks_documents=True),
        "8B": Flavor(name="8B"),
        "8B_flex": Flavor(name="8B", masks_documents=True),
        "8B_varlen": Flavor(name="8B", masks_documents=True),
        "70B": Flavor(name="70B"),
        "405B": Flavor(name="405B"),
    },
    "qwen3": {
        "debugmodel": Flavor(name="debugmodel", shape=_QWEN_DEBUG),
        **{name: Flavor(name=name) for name in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")},
    },
}

_WITH_EXPERTS = "has experts, and the model families here have none"
_EXPERTS: Mapping[str, tuple[str, ...]] = {"qwen3": ("debugmodel_moe", "30B-A3B", "235B-A22B")}
_OTHER_MODELS: Mapping[str, str] = {
    "deepseek_v3": _WITH_EXPERTS,
    "gpt_oss": _WITH_EXPERTS,
    "llama4": _WITH_EXPERTS,
    "flux": "makes images, and titan trains language models",
    "vlm": "reads images, and titan trains language models",
    "transformers_modeling_backend": "takes its layers from transformers, and titan builds its own",
    "transformers_backend": "takes its layers from transformers, and titan builds its own",
}
_LIKE_THESE = f"titan has {' and '.join(MODELS)}"

NORM, NAME, FLAVOR = "model.norm_type", "model.name", "model.flavor"
SHAPE_KEYS = ("n_layers", "n_kv_heads", "head_dim", "ffn_dim", "tie_embeddings")
FLAVOR_KEYS = (FLAVOR, "data.document_mask", *(f"model.shape.{name}" for name in SHAPE_KEYS))
_MASK_NOTE = "attention, positions and labels stay inside each document; torchtitan's labels reach into the next"


def name_outcome(given: Given) -> Outcome:
    """What becomes of model.name."""
    name = given[NAME]
    if name in MODELS:
        return Became({NAME: name})
    if name in _OTHER_MODELS:
        return Refused(f"{name} {_OTHER_MODELS[name]}", f"import a file of another model: {_LIKE_THESE}")
    inside = next((known for known in MODELS if known in name), None)
    if inside:
        return Refused(f"{name} is an experiment of torchtitan around {inside}", f'write name = "{inside}"')
    return Refused(f"titan has no model {name}", f"import a file of another model: {_LIKE_THESE}")


def norm_outcome(given: Given) -> Outcome:
    """What becomes of a norm of the time before 0.1; since then there is one."""
    if str(given[NORM]).lower() in ("rmsnorm", "fused_rmsnorm"):
        return Gone("the model families use RMSNorm")
    return Refused(f"the model families use RMSNorm, not {given[NORM]}", 'write "rmsnorm", or leave it out')


def flavor_outcome(given: Given) -> Outcome:
    """What becomes of model.flavor: the flavor, and the numbers in which the debug models differ."""
    name, flavor = given[NAME], given[FLAVOR]
    if name not in MODELS:
        return Gone(f"titan has no model {name}")
    found = MODELS[name].get(flavor)
    if found is None:
        if flavor in _EXPERTS.get(name, ()):
            known = tuple(MODELS[name])
            return Refused(f"{name} {flavor} {_WITH_EXPERTS}", f"choose one of {', '.join(known)}")
        near = nearest(flavor, tuple(MODELS[name]))
        fix = f'write "{near}"' if near else f"write one of {', '.join(MODELS[name])}"
        return Refused(f"torchtitan 0.2 has no {name} {flavor}", fix)
    values = {FLAVOR: found.name} | {f"model.shape.{key}": value for key, value in found.shape.items()}
    notes = []
    if found.shape:
        numbers = ", ".join(f"{key} {str(value).lower()}" for key, value in found.shape.items())
        notes.append(f"[model.shape] has what differs from titan's: {numbers}")
    if found.masks_documents:
        values["data.document_mask"] = True
        notes.append(_MASK_NOTE)
    return Became(values, "; ".join(notes))
