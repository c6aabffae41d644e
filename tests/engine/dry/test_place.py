"""Errors are told with their place in the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.dry.place import told


class Layers(nn.Module):
    """Two layers, of which the second takes another width."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"4": nn.Linear(2, 2), "5": nn.ModuleDict({"wo": nn.Linear(3, 2)})})
        self.norm = nn.LayerNorm(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Fails in layer 5."""
        return self.layers["5"]["wo"](self.layers["4"](x))


@pytest.fixture
def model() -> Layers:
    return Layers()


def error_of(model: nn.Module, x: torch.Tensor) -> Exception:
    """What it raises."""
    with pytest.raises(RuntimeError) as raised:
        model(x)
    return raised.value


def test_layer_and_module_are_named(model: Layers) -> None:
    text = told(error_of(model, torch.ones(1, 2)), [model], "in forward")
    assert text.startswith("layer 5, wo, in forward: mat1 and mat2 shapes cannot be multiplied")


def test_layer_alone_is_named(model: Layers) -> None:
    assert told(error_of(model, torch.ones(1, 9)), [model], "in forward").startswith("layer 4, in forward: ")


def test_module_outside_of_layers_has_its_name(model: Layers) -> None:
    assert told(error_of(model.norm, torch.ones(1, 2)), [model], "in forward").startswith("norm, in forward: ")


def test_error_that_others_wrap_is_the_one_told(model: Layers) -> None:
    inner = error_of(model, torch.ones(1, 2))
    outer = RuntimeError("stage 1 failed")
    outer.__cause__ = inner
    assert told(outer, [model], "in forward") == told(inner, [model], "in forward")


def test_error_without_a_module_has_its_phase_and_one_line(model: Layers) -> None:
    assert told(ValueError("two\nlines"), [model], "while it was built") == "while it was built: two lines"
    assert told(KeyError(), [model], "while it was built") == "while it was built: KeyError"


def test_long_message_is_cut(model: Layers) -> None:
    assert len(told(ValueError("x" * 5000), [model], "in forward")) < 1100
