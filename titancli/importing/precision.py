"""Low precision as torchtitan writes it: converters switch it on, and a filter may stand for layers too small for it.

Knows the names of torchtitan 0.2 and the widths below which torchao's filter leaves a layer out. Does not know what
titan does with them (engine/parallel/quantize).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.config import Model
from engine.shapes import block_parameters, shape_of
from titancli.importing.models import FLAVOR, MODELS, NAME
from titancli.importing.row import Became, Given, Gone, Outcome, Refused, Row, Switch

CONVERTERS = "model.converters"
_THEIR_FLOAT8, _THEIR_MX = "quantize.linear.float8", "quantize.linear.mx"
FLOAT8, MX = "quantize.dense.float8", "quantize.dense.mx"
_FLOAT8_NAMES = ("quantize.linear.float8", "quantize.dense.float8", "float8")
_MX_NAMES = ("quantize.linear.mx", "quantize.dense.mx", "mx")
_GROUPED = "quantize.grouped_mm."
_AUTO = "auto_filter_small_kn"


def uses_float8(given: Given) -> bool:
    """Whether a converter switches float8 on."""
    return any(name in _FLOAT8_NAMES for name in given[CONVERTERS])


def uses_mx(given: Given) -> bool:
    """Whether a converter switches MXFP8 on."""
    return any(name in _MX_NAMES for name in given[CONVERTERS])


# By torchtitan's section: whether a converter switches it on, titan's switch of it, and what it is called.
_SWITCHES: dict[str, tuple[Switch, str, str]] = {
    _THEIR_FLOAT8: (uses_float8, f"{FLOAT8}.enable", "float8"),
    _THEIR_MX: (uses_mx, f"{MX}.enable", "MXFP8"),
}


def told_where_off(row: Row) -> Row:
    """The row; one of a section that no converter switches on says so where it is written."""
    section = row.key.rpartition(".")[0]
    if section not in _SWITCHES:
        return row
    converted, switch, name = _SWITCHES[section]

    def turn(given: Given) -> Outcome:
        outcome = row.turn(given)
        if row.key not in given.written or not isinstance(outcome, Became) or converted(given) or switch in given.over:
            return outcome
        said = f"{name} stays off, as in torchtitan: no converter in [model] switches it on"
        return replace(outcome, note=f"{outcome.note}; {said}" if outcome.note else said)

    return replace(row, turn=turn)


def converters_outcome(given: Given) -> Outcome:
    """What becomes of model.converters: the switches of low precision."""
    others = [name for name in given[CONVERTERS] if name not in (*_FLOAT8_NAMES, *_MX_NAMES)]
    strange = [name for name in others if not name.startswith(_GROUPED)]
    if strange:
        fix = f"leave it out; titan has {_FLOAT8_NAMES[0]} and {_MX_NAMES[0]}"
        return Refused(f"titan has no converter {', '.join(strange)}", fix)
    if not given[CONVERTERS]:
        return Gone("it is empty: nothing is in low precision")
    values: dict[str, Any] = {}
    if uses_float8(given):
        values[f"{FLOAT8}.enable"] = True
    if uses_mx(given):
        values[f"{MX}.enable"] = True
    return Became(values) if values else Gone("it converts experts, and the model families here have none")


def recipe_outcome(given: Given) -> Outcome:
    """The recipe of float8; torchtitan scales tensors where none is named."""
    return Became({f"{FLOAT8}.recipe_name": given[f"{_THEIR_FLOAT8}.recipe_name"] or "tensorwise"})


def all_gather_outcome(given: Given) -> Outcome:
    """Gathering in float8, which torchtitan refuses beside a named recipe."""
    asked, recipe = given[f"{_THEIR_FLOAT8}.enable_fsdp_float8_all_gather"], given[f"{_THEIR_FLOAT8}.recipe_name"]
    if asked and recipe is not None and uses_float8(given):
        return Refused(f"torchtitan takes no recipe_name beside it, and {recipe} is given", "leave one of the two out")
    return Became({f"{FLOAT8}.enable_fsdp_float8_all_gather": asked})


def filter_outcome(given: Given) -> Outcome:
    """Layers that stay in high precision, with those that torchao's filter for small layers leaves out by name."""
    key = f"{FLOAT8}.filter_fqns"
    names = [name for name in given[f"{_THEIR_FLOAT8}.filter_fqns"] if name != _AUTO]
    if _AUTO not in given[f"{_THEIR_FLOAT8}.filter_fqns"]:
        return Became({key: names})
    recipe = given[f"{_THEIR_FLOAT8}.recipe_name"] or "tensorwise"
    if recipe == "rowwise_with_gw_hp":
        return Refused(f"{_AUTO} does not go with {recipe}", "name the layers, or leave it out")
    small = small_layers(given[NAME], given[FLAVOR], recipe)
    return Became({key: [*names, *small]}, f"{_AUTO} is written out: {', '.join(small) or 'no layer is that small'}")


def small_layers(name: str, flavor: str, recipe: str) -> list[str]:
    """Linear layers that torchao's filter leaves out, by their name in a block; none for a model that titan has not."""
    found = MODELS.get(name, {}).get(flavor)
    if found is None:
        return []
    shape = shape_of(Model.model_validate({"name": name, "flavor": found.name, "shape": dict(found.shape)}))
    sizes = {
        weight_name.removesuffix(".weight"): weight.shape
        for weight_name, weight in block_parameters(shape).items()
        if len(weight.shape) == 2
    }
    sizes["output"] = (shape.vocab_size, shape.dim)
    return [layer for layer, (n, k) in sizes.items() if _is_small(n, k, recipe)]


def _is_small(n: int, k: int, recipe: str) -> bool:
    """torchao's thresholds, from its measurements on H100: what is smaller gains nothing from float8."""
    if recipe == "tensorwise":
        return k <= 4096 and n <= 1024
    return n <= 2048 or k <= 1024 or (n <= 4096 and k <= 2048)
