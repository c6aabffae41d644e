"""Which words of a command line belong to dotted flags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reading.flags import Flag, split_flags


def split(line):
    """The words that are left, and (key, value) of each flag."""
    rest, flags = split_flags(line.split())
    return " ".join(rest), [(flag.key, flag.value) for flag in flags]


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("--training.seq_len 8", [("training.seq_len", "8")]),
        ("--training.seq_len=8", [("training.seq_len", "8")]),
        ("--training.seq_len=", [("training.seq_len", "")]),
        ("--training.dataset_path=a=b", [("training.dataset_path", "a=b")]),
        ("--training.global_batch_size -1", [("training.global_batch_size", "-1")]),
        ("--optimizer.lr -5e3", [("optimizer.lr", "-5e3")]),
        ("--training.dataset_path -", [("training.dataset_path", "-")]),
        ("--training.dataset_path run.toml", [("training.dataset_path", "run.toml")]),
        ("--launch.slurm.extra --exclusive", [("launch.slurm.extra", "--exclusive")]),
        ("--training.dataset_path --compile.enable", [("training.dataset_path", "--compile.enable")]),
        ("--training.seq_len", [("training.seq_len", None)]),
        ("--compile.enable", [("compile.enable", True)]),
        ("--compile.enable true", [("compile.enable", "true")]),
        ("--compile.enable false", [("compile.enable", "false")]),
        ("--compile.enable=false", [("compile.enable", "false")]),
        ("--no-compile.enable", [("compile.enable", False)]),
        ("--no-compile.enable=true", [("compile.enable", "true")]),
        ("--no-training.seq_len", [("training.seq_len", False)]),
        ("--quantize.dense.float8.enable", [("quantize.dense.float8.enable", True)]),
        ("--training.seq_len 1 --training.seq_len 2", [("training.seq_len", "1"), ("training.seq_len", "2")]),
        ("--model.shape.tie_embeddings true", [("model.shape.tie_embeddings", "true")]),
        ("--model.shape.tie_embeddings", [("model.shape.tie_embeddings", True)]),
        ("--no-model.shape.tie_embeddings", [("model.shape.tie_embeddings", False)]),
    ],
)
def test_a_dotted_flag_takes_its_value(line, flags):
    assert split(line) == ("", flags)


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("validate --compile.enable run.toml", "validate run.toml"),
        ("--compile.enable True", "True"),
        ("--compile.enable 1", "1"),
        ("--no-compile.enable true", "true"),
        ("launch run.toml --dry-run --training.steps 3 --name x", "launch run.toml --dry-run --name x"),
        ("--output a.toml --top 3 --seq-len 8", "--output a.toml --top 3 --seq-len 8"),
        ("-x --a=b.c --.a --a. --a..b -training.steps", "-x --a=b.c --.a --a. --a..b -training.steps"),
        ("--training.steps 3 -- --training.steps 4", "-- --training.steps 4"),
        ("--training.steps --", "--"),
        ("--training.typo 8 run.toml", "run.toml"),
        ("--training.typo run.toml", "run.toml"),
        ("--training.typo -x", "-x"),
        ("--training.typo --json", "--json"),
        ("--training.typo -1 run.toml", "run.toml"),
    ],
)
def test_every_other_word_stays_in_its_place(line, rest):
    assert split(line)[0] == rest


def test_an_unknown_flag_takes_a_value_that_is_longer_than_any_file_name():
    assert split_flags(["--job.nme", "a" * 5000]) == ([], (Flag("job.nme", "a" * 5000, "--job.nme"),))


def test_an_unknown_flag_leaves_a_file_that_exists(tmp_path):
    config = tmp_path / "config"
    config.touch()
    assert split_flags(["--training.typo", str(config)]) == (
        [str(config)],
        (Flag("training.typo", None, "--training.typo"),),
    )


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("--compile.enable=false", "--compile.enable"),
        ("--no-compile.enable", "--no-compile.enable"),
        ("--lr_scheduler.warmup-steps=3", "--lr_scheduler.warmup-steps"),
    ],
)
def test_a_flag_keeps_its_own_spelling(word, text):
    assert split_flags([word])[1][0].text == text


def test_a_value_of_several_lines_belongs_to_its_flag():
    assert split_flags(["--job.description=a\nb"])[1][0].value == "a\nb"


@given(st.lists(st.text(max_size=8).filter(lambda word: "." not in word)))
def test_words_without_a_dot_pass_untouched(words):
    assert split_flags(words) == (words, ())
