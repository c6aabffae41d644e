"""What `titan plan` is asked."""

from __future__ import annotations

import pytest

from engine.errors import Finding, TitanError
from engine.planner.search import search
from engine.rules.layouts import refusal
from engine.sources import Flag
from titancli.question import Asked, length_of, model_flags, question_of


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


@pytest.mark.parametrize(
    ("key", "word", "rule"),
    [
        ("model.flavor", "9B", "P125"),
        ("training.dataset", "foo", "D601"),
        ("quantize.dense.mx.enable", "true", "H703"),
    ],
)
def test_what_is_wrong_in_every_layout_is_told_before_the_search(key: str, word: str, rule: str) -> None:
    with pytest.raises(TitanError) as refused:
        question_of(None, None, [Flag(key, word, f"--{key}")], Asked(model="8B", gpu="h100-80"))
    assert [(each.rule, each.source) for each in refused.value.findings] == [(rule, f"flag --{key}")]


@pytest.mark.parametrize(("model", "lr"), [("debugmodel", 8e-4), ("8B", 3e-4), ("70B", 1.5e-4), ("405B", 8e-5)])
def test_large_models_start_with_the_rate_that_such_models_had(model: str, lr: float) -> None:
    config = question_of(None, None, (), Asked(model=model, gpu="h100-80")).config
    assert (config.optimizer.lr, config.lr_scheduler.warmup_steps) == (lr, 100)
    given = [Flag("optimizer.lr", "1e-3", "--optimizer.lr"), Flag("lr_scheduler.warmup_steps", "0", "--l")]
    config = question_of(None, None, given, Asked(model=model, gpu="h100-80")).config
    assert (config.optimizer.lr, config.lr_scheduler.warmup_steps) == (1e-3, 0)


def test_a_model_that_is_named_is_that_model_whatever_numbers_a_preset_has() -> None:
    model = question_of(None, "quickstart", (), Asked(model="1B")).config.model
    assert (model.flavor, model.shape.dim, model.shape.vocab_size) == ("1B", None, None)


def test_numbers_that_are_given_beside_a_named_model_stay() -> None:
    flags = (Flag("model.shape.n_layers", "2", "--model.shape.n_layers"),)
    shape = question_of(None, "quickstart", flags, Asked(model="1B")).config.model.shape
    assert (shape.n_layers, shape.dim) == (2, None)


@pytest.mark.parametrize("word", ["qwen3", "Qwen3 "])
def test_a_family_alone_is_asked_for_a_size(word: str) -> None:
    findings: list[Finding] = []
    assert model_flags(word, findings) == []
    assert findings[0].message == f"--model {word} is a family of models"
    assert findings[0].fix == 'add a size, as in "qwen3 32B"; known are debugmodel, 0.6B, 1.7B, 4B, 8B, 14B, 32B'


@pytest.mark.parametrize(
    ("word", "length"), [("8k", "8192"), ("32K", "32768"), ("128 k", "131072"), ("8,192", "8192"), ("abc", "abc")]
)
def test_a_length_may_end_in_k_and_have_commas(word: str, length: str) -> None:
    findings: list[Finding] = []
    assert (length_of(word, findings), findings) == (length, [])


@pytest.mark.parametrize("word", ["8M", "1.5k", "8kb", "8 tokens"])
def test_another_suffix_of_a_length_is_refused_with_what_to_write(word: str) -> None:
    with pytest.raises(TitanError) as refused:
        question_of(None, None, (), Asked(model="8B", gpu="h100-80", seq_len=word))
    assert [(each.rule, each.fix) for each in refused.value.findings] == [("U126", "write the number, or 8k for 8,192")]


def test_a_length_of_more_digits_than_python_reads_is_refused() -> None:
    with pytest.raises(TitanError, match="U126"):
        question_of(None, None, (), Asked(model="8B", gpu="h100-80", seq_len="9" * 5000 + "k"))
