"""What the words of `titan explain-config` ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import TitanError
from engine.keys import field_types
from engine.reading.unknown_keys import sections
from engine.rules import RULES
from titancli.explain.asked import Asked, asked
from titancli.explain.finding_page import findings


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], Asked(None, "overview")),
        (["run.toml"], Asked("run.toml", "overview")),
        (["run.toml", "training.seq_len"], Asked("run.toml", "key", "training.seq_len")),
        (["training.seq_len", "run.toml"], Asked("run.toml", "key", "training.seq_len")),
        (["runs/first/config"], Asked("runs/first/config", "overview")),
        (["parallelism"], Asked(None, "section", "parallelism")),
        (["p101"], Asked(None, "rule", "P101")),
        (["s101"], Asked(None, "finding", "S101")),
        (["run.toml", "D610"], Asked("run.toml", "finding", "D610")),
        (["strategies"], Asked(None, "strategies", "strategies")),
        (["strategies", "70B"], Asked(None, "strategies", "strategies", "70B")),
        (["llama3-405b", "strategies", "run.toml"], Asked("run.toml", "strategies", "strategies", "405B")),
        (["seq_len"], Asked(None, "key", "training.seq_len")),
        (["float8"], Asked(None, "section", "quantize.dense.float8")),
    ],
)
def test_a_word_is_a_file_a_key_a_section_or_a_rule(words: list[str], found: Asked) -> None:
    assert asked(words) == found


def test_every_key_section_rule_and_finding_is_known_by_its_name() -> None:
    kinds = {"key": field_types(), "section": sections(), "rule": [rule.id for rule in RULES], "finding": findings()}
    assert all(asked([name]) == Asked(None, kind, name) for kind, names in kinds.items() for name in names)


def test_a_file_is_a_config_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "data"):
        Path(name).write_text("")
    assert asked(["mine"]) == Asked("mine", "overview")
    assert asked(["data"]) == Asked("data", "overview")
    assert asked(["mine", "data"]) == Asked("mine", "section", "data")


def test_a_folder_is_a_config_only_where_it_is_called_like_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs", "checkpoint"):
        Path(name).mkdir()
    assert asked(["runs"]) == Asked("runs", "overview")
    assert asked(["checkpoint"]) == Asked(None, "section", "checkpoint")


def test_a_word_longer_than_any_file_name_is_no_file() -> None:
    with pytest.raises(TitanError) as raised:
        asked(["a" * 5000])
    assert raised.value.findings[0].rule == "U151"


@pytest.mark.parametrize(
    ("word", "rule", "message", "fix"),
    [
        ("training.seqlen", "U151", "it is spelled training.seq_len", "write training.seq_len"),
        ("training.sequence_len", "U151", "the nearest is training.seq_len", "write training.seq_len"),
        ("tp", "U151", "titan calls it", "write parallelism.tensor_parallel_degree"),
        ("enable", "U151", "belongs to", "write compile.enable or quantize.dense.float8.enable or"),
        ("training.batch_size", "U151", "it is now", "write training.local_batch_size"),
        ("training.enable_cpu_offload", "U151", "no such setting", "does not offer this"),
        ("training.xyz", "U151", "there is no key training.xyz", "or training for all of them"),
        ("paralelism", "U151", "no key or section", "write parallelism"),
        ("strategy", "U151", "no key or section", "write strategies"),
        ("P114", "U152", "there is no rule P114", "write P11"),
        ("Q399", "U152", "there is no rule Q399", "write Q3"),
        ("d699", "U152", "there is no rule D699", "write D655, D654 or D653"),
        ("X101", "U152", "nor any other finding of that id", "T, U and W"),
        ("run.tml", "U151", "there is no file, key, section or rule run.tml", "give a TOML file, a rule"),
        ("", "U151", "without a name", "give a TOML file"),
    ],
)
def test_an_unknown_word_is_told_with_the_nearest(word: str, rule: str, message: str, fix: str) -> None:
    with pytest.raises(TitanError) as refused:
        asked([word])
    (finding,) = refused.value.findings
    assert finding.rule == rule
    assert message in finding.message
    assert fix in finding.fix
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("word", "fix"),
    [("65B", "write 70B; it has 8B"), ("qwen3-1.7B", "write 8B"), ("70", "write 70B"), ("big", "give one of 8B, 70B")],
)
def test_a_size_that_the_guide_has_not_is_told_with_the_nearest(word: str, fix: str) -> None:
    with pytest.raises(TitanError) as refused:
        asked(["strategies", word])
    (finding,) = refused.value.findings
    assert (finding.rule, word in finding.message, fix in finding.fix) == ("U151", True, True)


@pytest.mark.parametrize(
    "words",
    [
        ("a.toml", "b.toml"),
        ("parallelism", "P101"),
        ("a.toml", "P101", "training"),
        ("strategies", "P101"),
        ("strategies", "8B", "70B"),
    ],
)
def test_one_config_and_one_key_are_explained_at_a_time(words: tuple[str, ...]) -> None:
    with pytest.raises(TitanError) as refused:
        asked(words)
    assert [finding.rule for finding in refused.value.findings] == ["U150"]
