"""Gradients of RMSNorm by our kernel, in Triton's interpreter.

Run as a program, `test_norm_kernel.py FILE` computes all cases and writes them: the interpreter is chosen for a whole
process, by TRITON_INTERPRET.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from engine.model import norm_kernel
from engine.model.norm_kernel import rms_norm_gradients

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no package for this system")

EPS = 1e-5
CASES = {"one row": (1, 64), "a power of two": (37, 128), "any width": (50, 100)}


def given(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of the output (R, D), input (R, D) and weight (D,) of a case."""
    rows, width = CASES[name]
    generator = torch.Generator().manual_seed(rows)
    gradient, x = (torch.randn(rows, width, generator=generator) for _ in range(2))
    return gradient, x, 1.0 + 0.2 * torch.randn(width, generator=generator)


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tensor, Tensor]]:
    """What the interpreter gives for all cases."""
    path = tmp_path_factory.mktemp("norms") / "computed.pt"
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, __file__, str(path)], check=True, env=environment)
    return torch.load(path)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_plain_arithmetic(name: str, computed: dict[str, tuple[Tensor, Tensor]]) -> None:
    gradient, x, weight = (tensor.double() for tensor in given(name))
    x.requires_grad_()
    weight.requires_grad_()
    rms_norm(x, weight.shape, weight, EPS).backward(gradient)
    # float32 against float64; a sum of R terms of about 1 each is 1e-6 of its root apart at most.
    for mine, exact in zip(computed[name], (x.grad, weight.grad), strict=True):
        assert exact is not None
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_the_compiler_takes_it_whole() -> None:
    # Forward and backward are traced at the first call; only what a GPU would run of them is not run.
    x = torch.randn(2, 8, 64, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(64, dtype=torch.bfloat16, requires_grad=True)
    compiled = torch.compile(norm_kernel.rms_norm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, weight, EPS), rms_norm(x, (64,), weight, EPS), rtol=1e-2, atol=1e-2)


if __name__ == "__main__":
    found = {}
    for case in CASES:
        gradient, x, weight = given(case)
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
        found[case] = rms_norm_gradients(gradient, x, weight, scale)
    torch.save(found, sys.argv[1])
