"""What keys want, in words, and how words are read for them."""

import pytest

from engine.keys import field_types
from engine.reading.wants import Want, is_sound, read_word, want


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("training.seq_len", "a whole number of at least 1"),
        ("debug.seed", "a whole number of at least 0"),
        ("checkpoint.load_step", "a whole number of at least -1"),
        ("parallelism.tensor_parallel_degree", "a whole number"),
        ("model.shape.dim", "a whole number of at least 1"),
        ("optimizer.lr", "a number of at least 0"),
        ("optimizer.eps", "a number above 0"),
        ("cluster.network_gbit_per_s_per_gpu", "a number from 1e-06 to 1000000"),
        ("cluster.memory_gib", "a number from 0.001 to 1000000"),
        ("optimizer.beta1", "a number of at least 0 and below 1"),
        ("lr_scheduler.decay_ratio", "a number from 0 to 1"),
        ("compile.enable", "true or false"),
        ("model.shape.tie_embeddings", "true or false"),
        ("job.name", "text"),
        ("data.tokenizer", "text"),
        ("model.name", "one of llama3, llama2, qwen3"),
        ("training.local_batch_size", 'a whole number of at least 1, or "auto"'),
        ("activation_checkpoint.selective_ac_option", 'a whole number of at least 1, or "op"'),
        ("launch.slurm.extra", "a list of text"),
        ("data.mixture", "a table of names with numbers above 0"),
    ],
)
def test_what_a_key_wants_is_said_in_words(key, words):
    assert want(key).words == words


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Want(frozenset({"number"}), above=0.0, at_most=5.0), "a number above 0 and at most 5"),
        (Want(frozenset({"number"}), at_most=5.0), "a number of at most 5"),
    ],
)
def test_an_upper_bound_is_told(wanted, words):
    assert wanted.words == words


@pytest.mark.parametrize("key", field_types())
def test_every_key_can_say_what_it_wants(key):
    assert want(key).words


@pytest.mark.parametrize(
    ("key", "word", "value"),
    [
        ("training.seq_len", "8", 8),
        ("training.seq_len", "8_192", 8192),
        ("training.seq_len", "-1", -1),
        ("training.seq_len", '"8"', "8"),
        ("training.seq_len", "8k", "8k"),
        ("training.seq_len", "1\ny = 2", "1\ny = 2"),
        ("training.seq_len", "", ""),
        ("optimizer.lr", "3e-4", 3e-4),
        ("optimizer.lr", "1", 1),
        ("compile.enable", "true", True),
        ("compile.enable", "True", "True"),
        ("job.name", "123", "123"),
        ("job.name", "", ""),
        ("job.name", '"123"', "123"),
        ("job.name", "'a b'", "a b"),
        ("job.name", '"open', '"open'),
        ("job.name", "[1]", "[1]"),
        ("job.name", '"a" "b"', '"a" "b"'),
        ("training.dataset_path", "true", "true"),
        ("launch.slurm.time", "12:00:00", "12:00:00"),
        ("model.flavor", "8B", "8B"),
        ("model.name", "llama3", "llama3"),
        ("model.name", '"llama3"', "llama3"),
        ("parallelism.pipeline_parallel_schedule", "1F1B", "1F1B"),
        ("training.local_batch_size", "auto", "auto"),
        ("training.local_batch_size", "4", 4),
        ("activation_checkpoint.selective_ac_option", "2", 2),
        ("compile.components", "model,loss", ["model", "loss"]),
        ("compile.components", "model, loss,", ["model", "loss"]),
        ("compile.components", '["model", "loss"]', ["model", "loss"]),
        ("compile.components", '"model","loss"', ["model", "loss"]),
        ("compile.components", "[model, loss]", ["model", "loss"]),
        ("compile.components", "", []),
        ("compile.components", "[]", []),
        ("launch.slurm.extra", '"--nodelist=a,b"', ["--nodelist=a,b"]),
        ("launch.slurm.extra", "8", ["8"]),
        ("data.mixture", '{"a/b" = 1.5, c = 2}', {"a/b": 1.5, "c": 2}),
        ("data.mixture", "a=1", "a=1"),
    ],
)
def test_a_word_is_read_as_its_key_wants_it(key, word, value):
    read = read_word(key, word)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63) + 1, "é", 1.5, True, ["a"], {"a": 1}])
def test_what_toml_can_hold_is_sound(value):
    assert is_sound(value)


@pytest.mark.parametrize("value", [2**63, "\udcff", ["a", "\ud800"], {"a": 2**64}, {"\udcff": 1}])
def test_what_toml_cannot_hold_is_not_sound(value):
    assert not is_sound(value)
