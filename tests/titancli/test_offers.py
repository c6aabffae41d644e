"""What could stand at the cursor of a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import Config
from engine.keys import field_types
from engine.rules import RULES
from engine.sources import Flag, load
from titancli.app import parsed
from titancli.offers import offers


def values(*words: str) -> list[str]:
    """What is offered for the last word, after those before it."""
    return [each.value for each in offers(list(words[:-1]), words[-1])]


def test_first_word_is_a_command() -> None:
    assert values("") == list(parsed().commands)


def test_word_after_a_group_is_a_command_of_its() -> None:
    assert values("data", "") == ["check", "prepare"]
    assert values("checkpoint", "e") == ["export"]


def test_flags_of_a_command_of_a_group_are_its_own() -> None:
    assert values("checkpoint", "ls", "--") == ["--dump-folder", "--json", "--help"]
    assert values("data", "check", "--training.") == values("validate", "--training.") != []


def test_no_command_is_offered_where_a_config_stands() -> None:
    assert values("validate", "") == []


def test_flags_of_a_command_come_before_the_sections_of_a_config() -> None:
    found = values("validate", "--")
    assert found[:6] == ["--preset", "--dry-run", "--stack", "--against", "--json", "--help"]
    assert found[6:] == [f"--{section}." for section in Config.model_fields]


def test_keys_are_offered_once_their_section_is_plain() -> None:
    keys = [f"--{key}" for key in field_types() if key.startswith("parallelism.")]
    assert values("launch", "--para") == values("launch", "--parallelism.") == keys


def test_only_boolean_keys_can_be_denied() -> None:
    assert values("validate", "--no-compile") == ["--no-compile.enable"]


def test_command_without_config_is_offered_no_keys() -> None:
    assert values("doctor", "--") == ["--measure", "--output", "--json", "--help"]


@pytest.mark.parametrize("key", sorted(field_types()))
def test_every_value_that_is_offered_for_a_key_is_taken(key: str) -> None:
    for value in values("validate", f"--{key}", ""):
        assert [each.rule for each in load(flags=[Flag(key, value, f"--{key}")], environ={}).findings] in ([], ["S107"])


def test_key_with_choices_offers_them() -> None:
    assert values("validate", "--activation_checkpoint.mode", "") == [
        *("none", "selective", "full", "memory_budget", "auto")
    ]


def test_bare_boolean_key_may_be_followed_by_another_word() -> None:
    assert values("explain-config", "--compile.enable", "") == ["true", "false", *values("explain-config", "")]
    assert values("validate", "--compile.enable", "--js") == ["--json"]


def test_value_after_an_equals_sign_keeps_its_flag() -> None:
    assert values("validate", "--compile.enable=t") == ["--compile.enable=true"]


@pytest.mark.parametrize("flag", ["--training.steps", "--job.name", "--output"])
def test_number_text_or_file_is_left_to_the_shell(flag: str) -> None:
    assert values("plan", flag, "") == []


def test_short_flags_offer_what_they_stand_for() -> None:
    assert values("plan", "--gpu", "a100") == ["a100-40", "a100-80"]
    assert values("plan", "--model", "qwen3-3") == ["qwen3-32B"]
    assert values("plan", "--goal", "m") == ["max-performance"]
    assert values("validate", "--stack", "t") == ["titan", "torchtitan"]


def test_explain_config_offers_sections_then_keys_then_rules() -> None:
    assert values("explain-config", "train") == [key for key in field_types() if key.startswith("training.")]
    assert values("explain-config", "run.toml", "optimizer.l") == ["optimizer.lr"]
    assert values("explain-config", "P") == [rule.id for rule in RULES if rule.id.startswith("P")]
    assert values("explain-config", "str") == ["strategies"]


def test_runs_are_offered_from_where_they_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "kept" / "second").mkdir(parents=True)
    assert values("logs", "") == ["first"]
    assert values("monitor", "--dump-folder", "kept", "s") == ["second"]
    assert values("launch", "--name", "") == ["first"]


def test_runs_to_compare_are_offered_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert values("compare", "first", "") == ["second"]
    assert values("compare", "first", "--against", "t") == ["tokens", "time"]
