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


def cut_lines(config: Callable[..., str], more: str = "") -> str:
    lines = ['{"text": "a"}', '{"text": "b"}', '{"text": "c', '{"text": "d"}', '{"text": "e"}']
    return config("\n".join(lines), "jsonl", more)


def here(ran: Any) -> Any:
    """What validate says of the one corpus that is here."""
    [corpus] = json.loads(ran.out)["here"]["data"]
    return corpus


def test_c38_validate_names_a_cut_line_with_its_place(titan: Callable[..., Any], config: Callable[..., str]) -> None:
    ran = titan("validate", cut_lines(config))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[D204]: line 3 (byte offset 28) of the corpus cannot be read: it is not JSON")
    assert "\n  --> corpus:3  training.dataset_path\n" in ran.err


def test_c38_validate_counts_a_line_that_is_skipped(titan: Callable[..., Any], config: Callable[..., str]) -> None:
    ran = titan("validate", cut_lines(config, '[data]\non_bad_line = "skip"\n'))
    assert (ran.code, ran.err) == (0, "")
    assert "  training      jsonl: 4 documents, 12 tokens (bytes), 1 sequence an epoch" in ran.out
    assert ", 1 bad line left out\n" in " ".join(ran.out.split(" " * 16)).replace("\n ", " ") + "\n"


def test_c38_validate_refuses_an_empty_corpus(titan: Callable[..., Any], config: Callable[..., str]) -> None:
    ran = titan("validate", config(""))
    assert ran.code == 2
    assert ran.err.startswith("error[D205]: the corpus has 0 documents: there is no text in it\n  --> run.toml:18")


def test_c38_validate_refuses_too_few_tokens_where_they_are_not_repeated(
    titan: Callable[..., Any], config: Callable[..., str]
) -> None:
    lines = "\n".join(['{"text": "abc"}'] * 3)
    words = ("validate", config(lines, "jsonl"), "--training.seq_len", "2048")
    assert titan(*words).code == 0
    ran = titan(*words, "--no-data.repeat")
    assert ran.code == 2
    assert "error[D205]: the corpus has 3 documents with 15 tokens, and 15 tokens < 2048 (seq_len)" in ran.err
    assert "  --> flag --training.seq_len  training.seq_len" in ran.err


def test_mistakes_of_the_config_and_of_its_data_are_one_report(
    titan: Callable[..., Any], config: Callable[..., str]
) -> None:
    told = json.loads(titan("validate", cut_lines(config), "--parallelism.tensor_parallel_degree", "4", "--json").out)
    assert {"D204", "P101"} <= {finding["rule"] for finding in told["findings"]}


def test_data_that_is_only_on_the_cluster_is_a_warning(titan: Callable[..., Any], config: Callable[..., str]) -> None:
    ran = titan("validate", config("word"), "--training.dataset_path", "/cluster/only", "--json")
    [finding] = json.loads(ran.out)["findings"]
    assert (ran.code, finding["rule"], finding["severity"]) == (0, "D610", "warning")
    assert finding["message"] == "training.dataset_path = /cluster/only is not on this machine"


def test_assets_that_are_only_on_the_cluster_are_a_warning_at_their_own_key(
    titan: Callable[..., Any], config: Callable[..., str]
) -> None:
    ran = titan("validate", config("word"), "--model.hf_assets_path", "/cluster/only", "--json")
    [finding] = json.loads(ran.out)["findings"]
    assert (ran.code, finding["rule"], finding["key"]) == (0, "D611", "model.hf_assets_path")


def test_validation_text_is_looked_at_too(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "held-out.txt").write_bytes(b"ok\xff")
    more = '[validation]\nenable = true\ndataset = "text"\ndataset_path = "held-out.txt"\n'
    [finding] = json.loads(titan("validate", config("word", more=more), "--json").out)["findings"]
    assert (finding["rule"], finding["key"], finding["file"]) == ("D204", "validation.dataset_path", "held-out.txt")


def test_every_corpus_of_a_mixture_is_looked_at(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    config("word")
    text = (tmp_path / "run.toml").read_text("utf-8").replace('dataset_path = "corpus"\n', "")
    (tmp_path / "run.toml").write_text(text + "[data]\nmixture = { corpus = 1.0, gone = 2.0 }\n", "utf-8")
    told = json.loads(titan("validate", "run.toml", "--json").out)
    assert [(finding["rule"], finding["key"]) for finding in told["findings"]] == [("D610", "data.mixture")]
    assert [(seen["path"], seen["documents"]) for seen in told["here"]["data"]] == [("corpus", 1)]


def test_json_lines_read_as_text_are_doubted(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n', "utf-8")
    ran = titan("validate", config("word"), "--training.dataset_path", "x.jsonl")
    assert ran.code == 0
    assert ran.err.startswith("warning[D612]: x.jsonl is read as one document of text, and its name says JSON lines")
    assert '\n  fix: set training.dataset to "jsonl"\n' in ran.err


def test_of_a_corpus_that_is_large_only_the_beginning_is_read(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    name = config("word")
    with (tmp_path / "corpus").open("r+b") as corpus:
        corpus.truncate(100 * 10**9)
    seen = here(titan("validate", name, "--json"))
    assert (seen["read_bytes"], seen["held_bytes"], seen["whole"]) == (32 << 20, 100 * 10**9, False)
    assert seen["text"] == "text: 1 document in the first 32.0 MiB of 93.1 GiB; launch reads the rest"


def test_a_bad_line_of_a_large_corpus_is_told_without_reading_it_whole(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    name = cut_lines(config)
    with (tmp_path / "corpus").open("r+b") as corpus:
        corpus.truncate(100 * 10**9)
    ran = titan("validate", name)
    assert ran.code == 2
    assert "line 3 (byte offset 28)" in ran.err


def test_a_small_corpus_is_tokenised_as_launch_does(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    words = ("--data.tokenizer", tokenizer(tmp_path, 200), "--json")
    assert here(titan("validate", config("word"), *words))["text"].startswith(f"text: 1 document, 1 token ({words[1]})")


def test_the_library_that_comes_with_python_is_not_read(titan: Callable[..., Any]) -> None:
    assert json.loads(titan("validate", "--preset", "quickstart", "--json").out)["here"]["data"] == []


def test_a_wrong_key_of_the_data_leaves_it_unread(
    titan: Callable[..., Any], config: Callable[..., str], tmp_path: Path
) -> None:
    config("")
    text = (tmp_path / "run.toml").read_text("utf-8").replace('dataset_path = "corpus"', "dataset_path = 3")
    (tmp_path / "run.toml").write_text(text, "utf-8")
    told = json.loads(titan("validate", "run.toml", "--json").out)
    assert ([finding["line"] for finding in told["findings"]], told["here"]["data"]) == ([18], [])
