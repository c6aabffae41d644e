"""The data of a config, looked at by `validate` and by `launch` before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RUN = """\
[cluster]
gpu = "cpu"
gpus_per_node = 2

[model.shape]
dim = 32
n_layers = 1
n_heads = 2
n_kv_heads = 2
ffn_dim = 64
vocab_size = 259

[training]
seq_len = 16
steps = 3
mixed_precision_param = "float32"
dataset = "{dataset}"
dataset_path = "corpus"
"""


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """Writes a config and its corpus; returns the name of the config."""

    def write(corpus: str, dataset: str = "text", more: str = "") -> str:
        (tmp_path / "corpus").write_text(corpus, "utf-8")
        (tmp_path / "run.toml").write_text(RUN.format(dataset=dataset) + more, "utf-8")
        return "run.toml"

    return write


def tokenizer(folder: Path, largest_id: int) -> str:
    """A tokenizer.json of two words, the second with this id."""
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"[UNK]": 0, "word": largest_id}, unk_token="[UNK]")).save(str(folder / "words.json"))
    return str(folder / "words.json")


def nothing_started(folder: Path) -> bool:
    return not (folder / "runs").exists()


def test_c38_empty_corpus_is_refused_before_launch(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    ran = titan("launch", config(""))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[D205]: the corpus has 0 documents")
    assert "\n  --> run.toml:18  training.dataset_path\n" in ran.err
    assert nothing_started(tmp_path)


def test_c38_too_few_tokens_are_refused_before_launch(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    ran = titan("launch", config("abc", more="[data]\nrepeat = false\n"))
    assert ran.code == 2
    assert "5 tokens < 16 (seq_len)" in ran.err
    assert nothing_started(tmp_path)


def test_c38_cut_line_is_refused_before_launch_with_its_place(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    lines = ['{"text": "a"}', '{"text": "b"}', '{"text": "c', '{"text": "d"}', '{"text": "e"}']
    ran = titan("launch", config("\n".join(lines), "jsonl"))
    assert ran.code == 2
    assert "line 3 (byte offset 28)" in ran.err
    assert "  --> corpus:3  training.dataset_path" in ran.err
    assert nothing_started(tmp_path)


def test_c38_skipped_line_is_counted_in_what_launch_says(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    lines = ['{"text": "a"}', '{"text": "b"}', '{"text": "c', '{"text": "d"}', '{"text": "e"}']
    ran = titan("launch", config("\n".join(lines), "jsonl", '[data]\non_bad_line = "skip"\n'), "--name", "x")
    assert ran.code == 0, ran.err
    assert "jsonl: 4 documents, " in ran.out
    assert ", 1 bad line left out" in ran.out
    assert sorted(entry.name for entry in (tmp_path / "runs" / "x").iterdir() if entry.is_dir()) == [
        *("checkpoints", "events", "logs"),
    ]


def test_c37_data_that_ends_stops_all_ranks_at_one_step_and_launch_says_why(
    titan: Callable[..., Any], config: Callable[..., str]
) -> None:
    # Five sequences of 16 tokens: two ranks take two steps, and the fifth is left.
    ran = titan("launch", config("x" * (5 * 16 + 4), more="[data]\nrepeat = false\n"), "--name", "x")
    assert ran.code == 0, ran.err
    assert "done: 2 of 3 steps" in ran.out
    assert "the data ended after step 2 on all data ranks" in ran.out


@pytest.mark.parametrize("command", ["validate", "launch"])
def test_c40_tokenizer_larger_than_the_table_is_refused(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path, command: str
) -> None:
    words = ("--model.shape.vocab_size", "102400", "--data.tokenizer", tokenizer(tmp_path, 128_814))
    ran = titan(command, config("word"), *words)
    assert (ran.code, ran.out) == (2, "")
    assert "26,415 short" in ran.err
    assert "  --> flag --model.shape.vocab_size  model.shape.vocab_size" in ran.err
    assert nothing_started(tmp_path)


def test_c40_tokenizer_smaller_than_the_table_is_accepted(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    assert titan("validate", config("word"), "--data.tokenizer", tokenizer(tmp_path, 200)).code == 0


def test_config_that_its_tokenizer_breaks_has_no_plan(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    told = json.loads(titan("validate", config("word"), "--data.tokenizer", tokenizer(tmp_path, 300), "--json").out)
    assert (told["ok"], told["plan"], [finding["rule"] for finding in told["findings"]]) == (False, None, ["D207"])


def test_tokenizer_that_is_only_on_the_cluster_does_not_trouble_validate(
    titan: Callable[..., Any], config: Callable[..., str]
) -> None:
    assert titan("validate", config("word"), "--data.tokenizer", "/cluster/only/tokenizer.json").code == 0
