"""`titan data check`: what it finds, what it says, and when a run would be refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.data.prepared import is_prepared
from engine.rules import check as judge
from engine.sources import load
from titancli.dispatch import run_command_line
from titancli.whole_corpus import read_corpus

Written = Callable[..., str]
HELD_OUT = '[validation]\nenable = true\nfreq = 3\ndataset = "text"\ndataset_path = "held-out"\n'
CUT = '{"text": "a"}\n{"text": "b"}\n{"text": "c\n{"text": "d"}\n{"text": "e"}\n'


def lines_of(*texts: str) -> str:
    """Texts as JSON lines."""
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def words_tokenizer(folder: Path, *names: str) -> str:
    """A tokenizer.json of the words `a` and `b`, with the special tokens <s> (1) and </s> (2) and `names` from 10."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    more = {name: 10 + place for place, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "<s>": 1, "</s>": 2, "a": 7, "b": 8, **more}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>", *names])
    tokenizer.save(str(folder / "words.json"))
    return "words.json"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `titan data check run.toml`: its code, and what it wrote."""

    def run(*words: str) -> tuple[int, str, str]:
        code = run_command_line(["data", "check", "run.toml", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def found(told: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """The object of `--json`, with its `code`."""

    def run(*words: str) -> Any:
        code, out, err = told(*words, "--json")
        assert err == ""
        return {**json.loads(out), "code": code}

    return run


def row(told: str, label: str) -> str:
    """The text behind a label of the first corpus, on one line."""
    begins = told.index(f"\n  {label} ")
    lines = told[begins + 1 :].split("\n")
    more = next(place for place, line in enumerate(lines[1:], start=1) if not line.startswith(" " * 13))
    return " ".join(line[13:] for line in lines[:more])


def rules(findings: Sequence[Any]) -> list[str]:
    return [finding["rule"] for finding in findings]


def test_counts_are_those_of_the_loader_and_of_what_launch_says(written: Written, found: Any) -> None:
    Path("corpus").write_text(lines_of("one", "two and more", "three"))
    Path("held-out").write_text("not trained on " * 9)
    loaded = load(written(more=HELD_OUT))
    plan = judge(loaded).plan
    assert plan is not None
    training, validation = read_corpus(loaded, plan).split("\n  validation: ")
    told = found()
    assert training == "jsonl: 3 documents, 26 tokens (bytes), 1 sequence an epoch, 8.00 epochs to read"
    counts = [told["training"][name] for name in ("documents", "tokens", "samples_per_epoch", "epochs_needed")]
    assert (told["ok"], counts) == (True, [3, 26, 1, 8.0])
    assert validation == "text: 1 document, 137 tokens (bytes), 8 sequences, 4 batches every 3 steps"
    assert [told["validation"][name] for name in ("documents", "tokens", "batches", "validations")] == [1, 137, 4, 2]


def test_longest_document_is_named_with_its_place_and_its_first_words(written: Written, told: Any) -> None:
    Path("corpus").write_text(lines_of("short", "") + lines_of("the longest of them", "x"))
    written()
    _, out, _ = told()
    assert row(out, "longest") == "21 tokens, document 2, corpus:3: <BOS>the longest of them<EOS>"
    assert row(out, "documents") == "of 10.3 tokens on average, median 7, 3 to 21"


def test_what_sequences_cut_and_leave_out_is_said(written: Written, told: Any) -> None:
    Path("corpus").write_text(lines_of("x" * 30, "y" * 3, "z" * 10))
    written(more="[data]\ndocument_mask = true\n")
    _, out, _ = told()
    assert row(out, "sequences") == "3 of 16 tokens an epoch, none left over"
    assert row(out, "cut") == (
        "33.3 % of the documents are in no sequence whole; 33.3 % are longer than one; 4.2 % of the labels are "
        "masked, the first token of a document"
    )


def test_tokens_at_the_end_that_make_no_sequence_are_said_with_the_documents_in_them(
    written: Written, told: Any
) -> None:
    Path("corpus").write_text(lines_of("x" * 20, "y", "z"))
    written()
    _, out, _ = told()
    assert row(out, "sequences") == (
        "1 of 16 tokens an epoch; the last 11 tokens make none and are not read, 2 whole documents among them"
    )


def test_coverage_of_a_run_counts_each_sequence_once(written: Written, found: Any) -> None:
    Path("corpus").write_text(lines_of("x" * 1000))
    written()
    [corpus] = found()["training"]["corpora"]
    assert corpus["read"] == {"samples": 8, "different_samples": 8, "tokens": 128, "epochs": 8 / 62}
    [corpus] = found("--training.steps", "40")["training"]["corpora"]
    assert (corpus["read"]["different_samples"], corpus["read"]["epochs"]) == (62, 80 / 62)


def test_mixture_says_what_was_asked_for_and_dealt_and_the_epochs_of_each(
    written: Written, found: Any, told: Any
) -> None:
    Path("a").write_text(lines_of("x" * 200))
    Path("b").write_text(lines_of("y" * 2000))
    written(path=None, more="[data]\nmixture = { a = 1.0, b = 3.0 }\n")
    first, second = found("--training.steps", "100")["training"]["corpora"]
    assert (first["share_asked"], second["share_asked"], first["share"]) == (0.25, 0.75, 0.25)
    assert first["read"]["samples"] + second["read"]["samples"] == 200
    assert first["read"]["epochs"] == first["read"]["samples"] / 12 > 3 > second["read"]["epochs"]
    _, out, _ = told("--training.steps", "100")
    assert "25 % asked for, 25 % dealt" in row(out, "run")
    assert "training: all 2 corpora\n  run        3,200 tokens in 100 steps\n" in out


def test_c40_special_tokens_are_named_and_counted(written: Written, found: Any, told: Any, tmp_path: Path) -> None:
    Path("corpus").write_text(lines_of("a b", "b </s> a <s>", "a </s>"))
    written(more=f'[data]\ntokenizer = "{words_tokenizer(tmp_path)}"\n')
    values = found()
    assert values["tokenizer"] == {
        "name": "words.json",
        "vocab_used": 9,
        "vocab_size": 259,
        "bos": {"id": 1, "name": "<s>"},
        "eos": {"id": 2, "name": "</s>"},
    }
    [corpus] = values["training"]["corpora"]
    assert [(each["name"], each["count"]) for each in corpus["special"]] == [("<s>", 3), ("</s>", 3)]
    assert corpus["spelt"] == {"documents": 3, "names": {"<s>": 1, "</s>": 2}}
    _, out, _ = told()
    assert row(out, "special") == "BOS is <s> (1), EOS is </s> (2)"
    assert row(out, "spelt out") == (
        "1 of them spells <s>, 2 of them spell </s>: it stays text there, and is no command"
    )


def test_c40_tokenizer_larger_than_the_table_is_refused(written: Written, found: Any, tmp_path: Path) -> None:
    Path("corpus").write_text(lines_of("a"))
    written(more=f'[data]\ntokenizer = "{words_tokenizer(tmp_path)}"\n')
    values = found("--model.shape.vocab_size", "6")
    assert (values["code"], rules(values["findings"]), values["training"]) == (2, ["D207"], None)


def test_c38_lines_that_are_skipped_are_counted_and_named(written: Written, found: Any, told: Any) -> None:
    Path("corpus").write_text(CUT)
    written(more='[data]\non_bad_line = "skip"\n')
    values = found()
    [corpus] = values["training"]["corpora"]
    assert (values["code"], corpus["documents"], corpus["bad_lines"]) == (0, 4, 1)
    assert [(bad["file"], bad["line"], bad["byte_offset"]) for bad in corpus["bad"]] == [("corpus", 3, 28)]
    _, out, _ = told()
    assert row(out, "bad").startswith("1 bad line, left out (data.on_bad_line = skip) corpus, line 3 (byte offset 28)")


def test_c38_lines_that_are_refused_do_not_hide_the_rest(written: Written, found: Any, told: Any) -> None:
    Path("corpus").write_text(CUT)
    written()
    values = found()
    assert (values["code"], rules(values["findings"]), values["training"]["documents"]) == (2, ["D204"], 4)
    assert values["findings"][0]["line"] == 3
    _, out, err = told()
    assert row(out, "bad").startswith("1 bad line, refused by launch (data.on_bad_line = error)")
    assert err.endswith("run: 1 error\n")


def test_c38_only_the_first_ten_are_named_and_all_counted(written: Written, told: Any) -> None:
    Path("corpus").write_text(lines_of("a" * 40) + "{\n" * 12)
    written(more='[data]\non_bad_line = "skip"\n')
    _, out, _ = told()
    assert row(out, "bad").startswith("12 bad lines, ")
    assert row(out, "bad").endswith(" and 2 more")
    assert out.count("\n             corpus, line ") == 10


@pytest.mark.parametrize(
    ("corpus", "words", "message"),
    [
        ("", (), "the corpus has 0 documents"),
        (
            lines_of("abc", "def", "ghi"),
            ("--no-data.repeat", "--training.seq_len", "2048"),
            "the corpus has 3 documents with 15 tokens, and 15 tokens < 2048 (seq_len)",
        ),
    ],
    ids=["empty", "short"],
)
def test_c38_too_little_data_is_refused(
    written: Written, found: Any, corpus: str, words: tuple[str, ...], message: str
) -> None:
    Path("corpus").write_text(corpus)
    written()
    values = found(*words)
    assert (values["code"], rules(values["findings"])) == (2, ["D205"])
    assert values["findings"][0]["message"].startswith(message)


def test_c38_short_corpus_that_repeats_counts_its_epochs(written: Written, told: Any) -> None:
    Path("corpus").write_text(lines_of("abc", "def", "ghi"))
    written()
    code, out, _ = told("--training.seq_len", "2048")
    assert code == 0
    assert row(out, "sequences") == "shorter than one of 2,048 tokens: it is read round and round within each"
    assert row(out, "run").startswith("8 sequences, 16,384 tokens: 100.0 % of what there is, 1,092.27 epochs")


def test_c38_data_that_ends_before_the_run_does_is_said(written: Written, told: Any) -> None:
    Path("corpus").write_text(lines_of("x" * 60))
    written()
    _, out, _ = told("--no-data.repeat")
    assert row(out, "run").endswith("in 1 of 4 steps, where the data ends (data.repeat = false)")


def test_validation_corpus_is_refused_at_its_own_keys(written: Written, found: Any) -> None:
    Path("corpus").write_text(lines_of("x" * 60))
    Path("held-out").write_bytes(b"")
    written(more=HELD_OUT)
    values = found()
    [finding] = values["findings"]
    assert (values["code"], finding["rule"], finding["key"]) == (2, "D205", "validation.dataset_path")
    assert "training" not in finding["fix"]
    assert (values["training"]["documents"], values["validation"]) == (1, None)


def test_first_sample_is_decoded_with_borders_positions_and_masked_labels(written: Written, told: Any) -> None:
    Path("corpus").write_text(lines_of("abc", "defghijklmnopqrstuvwxyz"))
    written(more="[data]\nshuffle = false\ndocument_mask = true\n")
    _, out, _ = told("--sample", "9")
    assert out.partition("\n\nsample 0 ")[2].partition("\n\nok: ")[0] == (
        "of the run is sequence 0, the first 9 of 16 tokens\n"
        "  tokens 0 to 4, positions 0 to 4: document 1, whole; the label of token 4 is masked\n"
        "    | <BOS>abc<EOS>\n"
        "  tokens 5 to 8, positions 0 to 3: document 2, from its beginning\n"
        "    | <BOS>def"
    )


def test_first_sample_is_the_one_that_a_run_reads_first(written: Written, found: Any) -> None:
    Path("corpus").write_text(lines_of("".join(chr(97 + place % 26) for place in range(600))))
    written()
    from engine.data.loader import Loader
    from engine.data.tokenizer import ByteTokenizer

    loaded = load("run.toml")
    plan = judge(loaded).plan
    assert plan is not None
    batches = Loader(loaded.config, plan, data_rank=0).batches(1)
    assert batches is not None
    [piece] = found()["sample"]["pieces"]
    assert piece["text"] == ByteTokenizer().decode(batches[0].tokens_BS[0].tolist())


def test_samples_of_no_length_are_refused_and_none_is_shown_for_0(written: Written, told: Any) -> None:
    Path("corpus").write_text(lines_of("x" * 60))
    written()
    code, _, err = told("--sample", "-1")
    assert (code, err.partition("\n")[0]) == (2, "error[U116]: --sample -1 is no number of tokens")
    code, out, _ = told("--sample", "0")
    assert (code, "sample 0" in out) == (0, False)


def test_corpus_and_tokenizer_that_are_not_here_are_refused(written: Written, found: Any) -> None:
    written()
    assert rules(found()["findings"]) == ["D202"]
    assert rules(found("--data.tokenizer", "gone")["findings"]) == ["D206"]


def test_config_that_is_wrong_elsewhere_is_told_and_no_data_is_read(written: Written, found: Any) -> None:
    written()
    values = found("--parallelism.tensor_parallel_degree", "3")
    assert values["code"] == 2
    assert "P101" in rules(values["findings"])
    assert (values["tokenizer"], values["training"], values["sample"]) == (None, None, None)


def test_ids_of_others_are_counted_and_decoded(written: Written, found: Any) -> None:
    import numpy as np

    np.array([256, 97, 98, 257] * 20, dtype=np.uint16).tofile("ids.bin")
    written("bins", "ids.bin", "[data]\nshuffle = false\n")
    values = found("--sample", "4")
    [corpus] = values["training"]["corpora"]
    assert [(each["count"], each["among"]) for each in corpus["special"]] == [(20, 80), (20, 80)]
    assert (corpus["spelt"], corpus["longest"]["begins"]) == (None, "<BOS>ab<EOS>")
    assert [piece["text"] for piece in values["sample"]["pieces"]] == ["<BOS>ab<EOS>"]


def test_large_corpus_is_prepared_on_stderr_and_looked_into(
    written: Written, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.data import large

    monkeypatch.setattr(large, "LARGE_BYTES", 0)
    Path("corpus").write_text(CUT)
    written(more='[data]\non_bad_line = "skip"\n')
    code, out, err = told("--json")
    assert code == 0
    assert err.startswith("preparing jsonl corpus (1 file, ")
    [corpus] = json.loads(out)["training"]["corpora"]
    assert is_prepared(corpus["prepared"])
    assert ([bad["line"] for bad in corpus["bad"]], corpus["longest"]["place"]["line"]) == ([3], 1)


def test_stream_is_looked_at_as_far_as_it_has_come(written: Written, found: Any, told: Any) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": ["one", "two"] * 30}).save_to_disk("saved")
    written("huggingface", "saved", "[data]\nstreaming = true\n")
    values = found("--sample", "5")
    assert values["code"] == 0
    assert values["training"]["beginning"]["documents"] == 60
    assert values["training"]["needed_tokens"] == 4 * 2 * 16
    assert values["sample"]["pieces"][0]["text"] == "<BOS>one<EOS>"
    _, out, _ = told()
    assert "training: huggingface saved, read while it arrives\n" in out


def test_output_fits_a_narrow_screen(written: Written, tmp_path: Path) -> None:
    from titancli.pages.screen import written as on_screen

    Path("corpus").write_text(lines_of("the quick brown fox " * 9, "x"))
    written()
    told = on_screen(("data", "check", "run.toml"), folder=tmp_path, columns=60, environ={"NO_COLOR": "1"})
    assert "\n  longest    182 tokens" in told.replace("\r", "")
    assert max(map(len, told.splitlines())) <= 60
