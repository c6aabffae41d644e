"""Adam's update in one pass: its arithmetic in Triton's interpreter, and what it becomes on a GPU that is not here.

Run as a program, `test_adam_kernel.py FILE` updates all cases and writes what came out: the interpreter is chosen for a
whole process, by TRITON_INTERPRET. It cuts float32 to bfloat16 off instead of rounding it: here bfloat16 is compared to
one unit in its last place (2^-7), and that a GPU rounds to the nearest is read in its code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.adam_kernel import LAUNCH, _kernel, available, fused_adam
from engine.config import Optimizer
from engine.optim import make_optimizer, update

# Torch's GPU builds bring Triton; for the CPU there are wheels for Linux only.
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no package for this system")

BETAS, EPS, RATES = (0.9, 0.95), 1e-3, (1e-2, 5e-3, 2e-2, 1e-2)
BF16_ULP = 2.0**-7
# The interpreter rounds the product in a fused multiply-add: that is 6e-8 of a square, of which 1 - beta2, a twentieth,
# is left. Terms may cancel: then errors are to be seen against the largest ones of weights and of both states.
RELATIVE, SMALLEST = 3e-6, (2e-7, 5e-9, 5e-11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is updated, and in which steps the gate is shut."""

    sizes: tuple[tuple[int, ...], ...] = ((3, 700), (5,), (0, 4), (2, LAUNCH.block))
    weights: torch.dtype = torch.float32
    gradients: torch.dtype = torch.float32
    copies: bool = False
    decoupled: bool = True
    divisor: float | None = None
    bad: tuple[bool, ...] = (False,) * 4
    transposed: bool = False


BF16 = torch.bfloat16
CASES = {
    "float32": Case(),
    "bfloat16 gradients": Case(gradients=BF16, copies=True),
    "copies": Case(copies=True),
    "decay in the gradient": Case(decoupled=False),
    "divisor": Case(divisor=3.0, gradients=BF16, copies=True),
    "divisor and decay in the gradient": Case(divisor=3.0, decoupled=False),
    "one bad step": Case(bad=(False, True, False, False), copies=True),
    "only bad steps": Case(bad=(True,), copies=True, divisor=float("nan")),
    "bfloat16": Case(weights=BF16, gradients=BF16, bad=(False,)),
    "bfloat16, summed in float32": Case(weights=BF16, bad=(False,)),
    "transposed": Case(sizes=((6, 50),), transposed=True),
}
FLOAT32 = [name for name, case in CASES.items() if case.weights is torch.float32]


@dataclass(slots=True, kw_only=True)
class Problem:
    """All tensors of a case: `gradients` of each step, the rest as it is before (or after) the steps."""

    weights: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    steps: list[Tensor]
    copies: list[Tensor | None]
    gradients: list[list[Tensor]]


def begin(case: Case) -> Problem:
    """The same tensors whenever it is called."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(size, generator=generator).to(case.weights) for size in case.sizes]
    gradients = [
        [(torch.randn(size, generator=generator) * 1e-2).to(case.gradients) for size in case.sizes] for _ in case.bad
    ]
    if case.transposed:
        gradients = [[gradient.t().contiguous().t() for gradient in step] for step in gradients]
    return Problem(
        weights=weights,
        exp_avgs=[torch.zeros_like(weight) for weight in weights],
        exp_avg_sqs=[torch.zeros_like(weight) for weight in weights],
        steps=[torch.zeros(()) for _ in weights],
        copies=[weight.to(BF16) if case.copies else None for weight in weights],
        gradients=gradients,
    )


def by_kernel(case: Case) -> Problem:
    """After all steps of the case, by the kernel."""
    problem = begin(case)
    for gradients, bad, lr in zip(problem.gradients, case.bad, RATES, strict=False):
        fused_adam(
            weights=problem.weights,
            gradients=gradients,
            exp_avgs=problem.exp_avgs,
            exp_avg_sqs=problem.exp_avg_sqs,
            steps=problem.steps,
            copies=problem.copies,
            lr=lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=EPS,
            weight_decay=0.1,
            decoupled=case.decoupled,
            divisor=None if case.divisor is None else torch.tensor(case.divisor),
            bad=torch.tensor(float(bad)),
        )
    return problem


def by_formula(case: Case) -> Problem:
    """After all steps of the case, as the papers have it, in float64."""
    problem = begin(case)
    weights, means, squares = ([one.double() for one in some] for some in _states(problem))
    count = 0
    for gradients, bad, lr in zip(problem.gradients, case.bad, RATES, strict=False):
        if bad:
            continue
        count += 1
        for index, weight in enumerate(weights):
            gradient = gradients[index].double() / (case.divisor or 1.0)
            if case.decoupled:
                weight *= 1 - lr * 0.1
            else:
                gradient += 0.1 * weight
            means[index] = BETAS[0] * means[index] + (1 - BETAS[0]) * gradient
            squares[index] = BETAS[1] * squares[index] + (1 - BETAS[1]) * gradient.square()
            mean, square = means[index] / (1 - BETAS[0] ** count), squares[index] / (1 - BETAS[1] ** count)
            weight -= lr * mean / (square.sqrt() + EPS)
    problem.weights, problem.exp_avgs, problem.exp_avg_sqs = weights, means, squares
    problem.steps = [torch.tensor(float(count)) for _ in weights]
    return problem


def by_torch(case: Case) -> Problem:
    """After all steps of the case, by torch's fused kernel for the CPU."""
    problem = begin(case)
    parameters = [nn.Parameter(weight) for weight in problem.weights]
    values: dict[str, Any] = {"beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS, "weight_decay": 0.1}
    config = Optimizer(name="AdamW" if case.decoupled else "Adam", implementation="fused", **values)
    optimizer = make_optimizer(config, parameters)
    divisor = None if case.divisor is None else torch.tensor(case.divisor)
    for gradients, bad, lr in zip(problem.gradients, case.bad, RATES, strict=False):
        update(optimizer, gradients, lr=lr, divisor=divisor, bad=torch.tensor(float(bad)))
    held = [(weight, optimizer.state[weight]) for weight in parameters if weight.numel()]
    problem.weights = [weight.detach() for weight, _ in held]
    problem.exp_avgs = [state["exp_avg"] for _, state in held]
    problem.exp_avg_sqs = [state["exp_avg_sq"] for _, state in held]
    return problem


def _states(problem: Problem) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    return problem.weights, problem.exp_avgs, problem.exp_avg_sqs


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Problem]:
    """What the kernel makes of every case."""
    path = tmp_path_factory.mktemp("adam") / "problems.pt"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, __file__, str(path)], env=environment, check=True, timeout=120)
    found = torch.load(path)
    return {name: Problem(**values) for name, values in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_updates_are_those_of_the_formula(name: str, interpreted: dict[str, Problem]) -> None:
    found, expected = interpreted[name], by_formula(CASES[name])
    relative = RELATIVE if name in FLOAT32 else BF16_ULP
    for mine, theirs, absolute in zip(_states(found), _states(expected), SMALLEST, strict=True):
        torch.testing.assert_close([one.double() for one in mine], theirs, rtol=relative, atol=absolute)
    assert found.steps == expected.steps


# torch's kernel for the CPU takes a transposed gradient for one in the weight's order (2.13).
@pytest.mark.parametrize("name", [name for name in FLOAT32 if not CASES[name].transposed])
def test_updates_are_those_of_torchs_fused_kernel(name: str, interpreted: dict[str, Problem]) -> None:
    found, expected = interpreted[name], by_torch(CASES[name])
    for mine, theirs, absolute in zip(_states(found), _states(expected), SMALLEST, strict=True):
        torch.testing.assert_close([one for one in mine if one.numel()], theirs, rtol=RELATIVE, atol=absolute)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.copies and not all(case.bad)])
def test_copies_are_what_weights_have_become(name: str, interpreted: dict[str, Problem]) -> None:
    found = interpreted[name]
    copies = [copy.float() for copy in found.copies if copy is not None]
    assert len(copies) == len(found.weights)
    torch.testing.assert_close(copies, found.weights, rtol=BF16_ULP, atol=0.0)


def test_a_bad_step_changes_nothing_at_all(interpreted: dict[str, Problem]) -> None:
    found, before = interpreted["only bad steps"], begin(CASES["only bad steps"])
    for mine, theirs in zip((*_states(found), found.copies), (*_states(before), before.copies), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=0.0)
    assert found.steps == before.steps


def test_a_weight_that_is_not_in_one_piece_is_refused() -> None:
    weight, zero = torch.zeros(4, 6).t(), torch.zeros(())
    with pytest.raises(AssertionError, match="not in one piece"):
        fused_adam(
            weights=[weight], gradients=[weight], exp_avgs=[weight], exp_avg_sqs=[weight], steps=[zero], copies=[None],
            lr=1.0, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, decoupled=True, divisor=None, bad=zero,
        )  # fmt: skip


def test_the_kernel_is_not_for_cpus() -> None:
    assert not available(torch.device("cpu"))


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The kernel as PTX for an H200: float32 weights, bfloat16 gradients and copies."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = _kernel()
    constants = {"DECOUPLED": True, "EVICTION": LAUNCH.eviction, "BLOCK": LAUNCH.block}
    kinds = dict.fromkeys(kernel.arg_names, "fp32") | dict.fromkeys(constants, "constexpr") | {"numel": "i64"}
    pointers = ("weight_N", "exp_avg_N", "exp_avg_sq_N", "divisor", "bad", "bias1", "bias2_root")
    kinds |= dict.fromkeys(pointers, "*fp32") | {"gradient_N": "*bf16", "copy_N": "*bf16"}
    even = [name for name, kind in kinds.items() if kind.startswith("*") or name == "numel"]
    source = ASTSource(
        kernel,
        kinds,
        {(kernel.arg_names.index(name),): value for name, value in constants.items()},
        {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in even},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        target = GPUTarget("cuda", 90, 32)
        return str(compile(source, target=target, options={"num_warps": LAUNCH.warps}).asm["ptx"])


def instructions(ptx: str, kind: str, width: str = "") -> int:
    """How many instructions begin so, and have that in their name."""
    return sum(word.startswith(kind) and width in word for word in ptx.split())


@pytest.mark.parametrize("kind", ["ld.global", "st.global"])
def test_a_thread_moves_four_elements_at_once(kind: str, hopper: str) -> None:
    assert (instructions(hopper, kind, ".v4.b32"), instructions(hopper, kind, ".v2.b32")) == (3, 1)


def test_nothing_goes_through_shared_or_local_memory(hopper: str) -> None:
    assert not any(instructions(hopper, kind) for kind in ("ld.shared", "st.shared", "ld.local", "st.local"))


def test_copies_are_rounded_to_the_nearest(hopper: str) -> None:
    assert instructions(hopper, "cvt", ".bf16x2.f32") == instructions(hopper, "cvt.rn", ".bf16x2.f32") == 2


def main(path: Path) -> None:
    """Updates all cases."""
    found = {name: by_kernel(case) for name, case in CASES.items()}
    torch.save({name: {key: getattr(one, key) for key in Problem.__slots__} for name, one in found.items()}, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
