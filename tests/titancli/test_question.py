"""What `titan plan` is asked."""

from __future__ import annotations

import pytest

from engine.errors import TitanError
from engine.planner.search import search
from engine.rules.layouts import refusal
from engine.sources import Flag
from titancli.question import Asked, question_of


@pytest.mark.parametrize(
    ("words", "name", "flavor"),
    [("8B", "llama3", "8B"), ("8b", "llama3", "8B"), ("qwen3 32B", "qwen3", "32B"), ("llama2-70B", "llama2", "70B")],
)
def test_a_model_is_a_flavor_of_llama3_or_has_its_family_before_it(words: str, name: str, flavor: str) -> None:
    model = question_of(None, None, (), Asked(model=words, gpu="h200")).config.model
    assert (model.name, model.flavor) == (name, flavor)


def test_keys_given_as_flags_are_kept() -> None:
    flags = (Flag("parallelism.tensor_parallel_degree", "4", "--parallelism.tensor_parallel_degree"),)
    question = question_of(None, None, flags, Asked(model="8B", gpu="h100-80", nodes="1", gpus_per_node="8"))
    found = search(question, refusal=refusal)
    assert {candidate.plan.mesh.tp for candidate in found.candidates} == {4}


def test_a_preset_gives_all_but_the_layout() -> None:
    question = question_of(None, "3d-405b", (), Asked())
    assert question.config.training.seq_len == 8192
    assert question.config.optimizer.lr == 8e-5
    assert question.fixed == frozenset()


def test_a_config_that_is_asked_for_by_nothing_is_refused() -> None:
    with pytest.raises(TitanError, match="titan plan needs a model"):
        question_of(None, None, (), Asked())
