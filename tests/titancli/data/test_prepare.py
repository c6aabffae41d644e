"""`titan data prepare`, and a launch that prepares what is large."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.data import large
from engine.errors import EXIT_INTERRUPTED, EXIT_OK, TitanError
from engine.rules import check
from titancli.data.prepare import prepare
from titancli.validate import load_config
from titancli.whole_corpus import read_corpus

RUN = """\
[cluster]
gpu = "cpu"
gpus_per_node = 1

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
dataset = "jsonl"
dataset_path = "corpus.jsonl"
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config and its corpus in the current folder."""
    monkeypatch.chdir(tmp_path)
    lines = (json.dumps({"text": f"line {number}"}) + "\n" for number in range(20))
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE_BYTES", 0)


def prepared(**more: Any) -> int:
    options: dict[str, Any] = {"output": "tokens", "workers": 1, "force": False, "as_json": False}
    return prepare("run.toml", None, (), **options | more)


def read(**more: Any) -> str:
    loaded = load_config("launch", "run.toml", None, ())
    plan = check(loaded).plan
    assert plan is not None
    return read_corpus(loaded, plan, **more)


def test_it_says_what_is_there_and_what_to_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepared() == EXIT_OK
    said = capsys.readouterr().out
    assert "jsonl corpus.jsonl: 20 documents, 170 tokens (bytes)" in " ".join(said.split())
    assert f'dataset = "bins"\n    dataset_path = "{tmp_path}/tokens"' in said


def test_what_it_says_to_set_trains_on_the_same(config: Path, tmp_path: Path) -> None:
    prepared()
    before = read()
    text = RUN.replace('"jsonl"', '"bins"').replace("corpus.jsonl", f"{tmp_path}/tokens")
    config.write_text(text)
    assert read() == before.replace("jsonl", "bins")


def test_a_second_call_finds_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    prepared()
    capsys.readouterr()
    assert prepared(as_json=True) == EXIT_OK
    (told,) = json.loads(capsys.readouterr().out)["corpora"]
    assert (told["documents"], told["tokens"], told["seconds"]) == (20, 170, None)
    assert told["set"]["training.dataset"] == "bins"


def test_c38_a_bad_line_is_told_with_its_place(tmp_path: Path) -> None:
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(TitanError) as caught:
        prepared()
    found = caught.value.findings[0]
    assert (found.rule, Path(str(found.file)).name, found.line) == ("D204", "corpus.jsonl", 21)
    assert not (tmp_path / "tokens/index.json").exists()


def test_a_config_that_names_no_corpus_is_refused_before_anything_is_made(config: Path, tmp_path: Path) -> None:
    config.write_text(RUN.replace('"jsonl"', '"jsonlines"'))
    with pytest.raises(TitanError, match="D601"):
        prepared()
    assert not (tmp_path / "tokens").exists()


def test_no_workers_are_refused() -> None:
    with pytest.raises(TitanError, match="U108"):
        prepared(workers=0)


def test_ctrl_c_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.data.prepare.worked_through", interrupted)
    assert prepared() == EXIT_INTERRUPTED
    assert "goes on" in capsys.readouterr().err


def test_validation_text_is_prepared_too(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "held.txt").write_text("held out")
    config.write_text(RUN + '[validation]\nenable = true\ndataset = "text"\ndataset_path = "held.txt"\n')
    prepared()
    assert (
        f'[validation]:\n    dataset = "bins"\n    dataset_path = "{tmp_path}/tokens/1-held"' in capsys.readouterr().out
    )


def test_the_standard_library_is_not_prepared(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(RUN.replace('"jsonl"', '"stdlib"').replace('dataset_path = "corpus.jsonl"\n', ""))
    assert prepared() == EXIT_OK
    assert "nothing to prepare" in capsys.readouterr().out


@pytest.mark.usefixtures("everything_is_large")
def test_runs_find_what_was_prepared_at_the_usual_place(capsys: pytest.CaptureFixture[str]) -> None:
    prepared(output=None)
    assert "find and map it by themselves" in capsys.readouterr().out
    read()
    assert "preparing" not in capsys.readouterr().out


@pytest.mark.usefixtures("everything_is_large")
def test_a_launch_prepares_and_tells_of_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_words = read()
    assert "preparing jsonl corpus.jsonl (1 file" in capsys.readouterr().out
    (before,) = (tmp_path / "runs/.prepared").iterdir()
    os.utime(tmp_path / "corpus.jsonl", ns=(1, 1))
    assert read() == in_words
    assert f"{before.name} holds tokens of the same corpus" in capsys.readouterr().out


@pytest.mark.usefixtures("everything_is_large")
def test_what_starts_nothing_here_prepares_nothing(tmp_path: Path) -> None:
    assert "the run prepares it in runs/.prepared" in read(prepares=False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("everything_is_large")
def test_c38_what_cannot_be_read_is_refused_before_launch(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "a"}\n{\n')
    for prepares in (True, False):
        with pytest.raises(TitanError, match="line 2"):
            read(prepares=prepares)


def test_prepared_tokens_are_no_run(titan: Callable[..., Any], tmp_path: Path) -> None:
    assert titan("data", "prepare", "run.toml", "--json").code == EXIT_OK
    assert (tmp_path / "runs/.prepared").is_dir()
    assert "there is no run in runs" in titan("monitor", "--once").err
