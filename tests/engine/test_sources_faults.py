"""What is wrong with a config, all in one pass: each fault with its place, and a config beside them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.keys import field_types, value_of
from engine.reading.toml_text import toml_key, toml_value
from engine.sources import load


def lines_of(loaded):
    """(rule, line, key) of each finding."""
    return [(finding.rule, finding.line, finding.key) for finding in loaded.findings]


def test_c49_every_kind_of_fault_is_found_in_one_pass_with_its_line(read):
    loaded = read(
        "learning_rate = 1e-4\n"
        "[train]\n"
        "seqlen = 4096\n"
        "[lr_scheduler]\n"
        "warmup-steps = 3\n"
        "[banana]\n"
        "x = 1\n"
        "[training]\n"
        "batch_size = 3\n"
        'steps = "8"\n'
        "loss_chunks = true\n",
        "--training.max_nrm 1",
        TITAN_OPTIMIZER__LEARNING_RATE="1",
    )
    assert lines_of(loaded) == [
        ("S101", 1, "learning_rate"),
        ("S101", 3, "train.seqlen"),
        ("S101", 5, "lr_scheduler.warmup-steps"),
        ("S101", 6, "banana"),
        ("S101", 9, "training.batch_size"),
        ("S102", 10, "training.steps"),
        ("S102", 11, "training.loss_chunks"),
        ("S101", None, "optimizer.learning_rate"),
        ("S101", None, "training.max_nrm"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[train]\nseqlen = 4096\n", 2, ["seqlen", "[train]", "seq_len", "[training]"]),
        ("learning_rate = 1e-4\n", 1, ["learning_rate", "optimizer.lr", "[optimizer]"]),
        ("seq_len = 8\n", 1, ["seq_len", "top level", "[training]"]),
        ("[lr_scheduler]\nwarmup-steps = 5\n", 2, ["warmup-steps", "write warmup_steps"]),
        ("[training]\n\n[banana]\n", 3, ["unknown section [banana]", "training"]),
        ("[training]\nbatch_size = 8\n", 2, ["batch_size", "training.local_batch_size"]),
        ("[training]\ntensor_parallel_degree = 2\n", 2, ["tensor_parallel_degree", "[parallelism]"]),
        ("[training]\ncompile = true\n", 2, ["compile.enable"]),
        ("[float8]\nenable_float8_linear = true\n", 2, ["quantize.dense.float8.enable"]),
        ("[training]\nseq_len = '8'\n", 2, ['"8" is text; seq_len wants a whole number of at least 1']),
        ("[training]\nseq_len = true\n", 2, ["true is a boolean; seq_len wants a whole number of at least 1"]),
        ("[model]\nname = 'lama3'\n", 2, ["one of llama3, llama2, qwen3", 'write "llama3"']),
        ("[training]\n[training.seq_len]\nx = 1\n", 2, ["a table is given; seq_len wants"]),
        ("\ntraining = 5\n", 2, ["training is given as 5; training is one section", "write [training]"]),
        ("[[training]]\nseq_len = 5\n", 1, ["[[training]] is a list of tables; training is one section"]),
        ("quantize.dense = true\n", 1, ["quantize.dense is given as true; quantize.dense is one section"]),
        ("[training]\nseq_len = 1\nseq_len = 2", 3, ["line 3, column 12", "given twice"]),
        ("[training]\nseq_len = = 2", 2, ["line 2, column 11"]),
        (b"[training]\n# \xff", 2, ["0xff", "UTF-8"]),
    ],
)
def test_c49_a_fault_is_printed_once_with_its_place_and_words(read, tmp_path, text, line, words):
    (finding,) = read(text).findings
    printed = str(finding)
    assert (finding.line, finding.file) == (line, str(tmp_path / "run.toml"))
    assert [word for word in words if word not in printed] == []


def test_a_fault_in_a_text_of_windows_is_on_the_same_line(read):
    assert lines_of(read("[training]\r\n\r\nseq_len = ''\r\n")) == [("S102", 3, "training.seq_len")]


def test_a_wrong_value_is_reported_even_where_another_source_goes_over_it(read):
    loaded = read("[training]\nseq_len = '8'\n", "--training.seq_len 8")
    assert lines_of(loaded) == [("S102", 2, "training.seq_len")]
    assert loaded.config.training.seq_len == 8
    assert loaded.broken == frozenset()


def test_a_config_is_there_beside_the_faults(read):
    loaded = read("[training]\nseq_len = '8'\nsteps = 3\nfoo = 1\n[parallelism]\ntensor_parallel_degree = 16\n")
    assert loaded.config.training.seq_len == Config().training.seq_len
    assert loaded.config.training.steps == 3
    assert loaded.config.parallelism.tensor_parallel_degree == 16
    assert loaded.broken == {"training.seq_len"}


def test_a_key_meant_by_a_misspelled_one_is_broken(read):
    assert read("[training]\nseqlen = 8\n").broken == {"training.seq_len"}


def test_a_misspelled_key_spoils_nothing_where_the_right_one_stands_too(read):
    loaded = read("[training]\nseqlen = 8\nseq_len = 16\n")
    assert (loaded.broken, loaded.config.training.seq_len) == (frozenset(), 16)


def test_a_misspelled_key_hides_the_value_of_the_preset(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[training]\nseqlen = 8\n")
    loaded = load(path, preset="quickstart", environ={})
    assert loaded.broken == {"training.seq_len"}
    assert loaded.config.training.seq_len == Config().training.seq_len


def test_a_section_that_is_no_table_spoils_all_its_keys(read):
    loaded = read("optimizer = 1\n", "--optimizer.lr 1e-4")
    assert loaded.broken == {key for key in field_types() if key.startswith("optimizer.")} - {"optimizer.lr"}


def test_what_cannot_be_read_spoils_all_but_what_is_set_over_it(read):
    loaded = read(
        "[training\n", "--training.steps 3 --training.seq_len oops", TITAN_DEBUG__SEED="5", TITAN_DEBUG__SED="5"
    )
    assert [rule for rule, _, _ in lines_of(loaded)] == ["S103", "S101", "S102"]
    assert loaded.broken == field_types().keys() - {"training.steps", "debug.seed"} | {"training.seq_len"}
    assert (loaded.config.training.steps, loaded.config.debug.seed) == (3, 5)


@pytest.mark.parametrize("given", [{"preset": "quick"}, {"path": "nothing/there.toml"}, {"path": "/"}])
def test_a_source_that_is_not_there_is_one_finding(given):
    loaded = load(environ={}, **given)
    assert [finding.rule for finding in loaded.findings] == ["S104"]
    assert loaded.broken == field_types().keys()


def test_a_file_is_still_checked_beside_a_preset_that_is_not_there(read, tmp_path):
    read("[training]\nseqlen = 8\n")
    loaded = load(tmp_path / "run.toml", preset="nope", environ={})
    assert [finding.rule for finding in loaded.findings] == ["S104", "S101"]


@pytest.mark.parametrize(
    "text",
    [
        "a." * 3000 + "a = 1",
        "[" + "a." * 3000 + "a]",
        "x = " + "[" * 2000,
        "[training]\nseq_len = 0x" + "f" * 10_000,
        "[training]\nsteps = " + "9" * 5000,
        "[optimizer]\nlr = 0x" + "f" * 10_000,
        "[data]\nmixture = {a = 0x" + "f" * 10_000 + "}",
        "[data]\nmixture = {a = {b = 1}}",
        "[launch.slurm]\nextra = [[[[]]]]",
        '"\\u0000" = 1\n[""]\n"" = 1',
        "[training]\nsteps = 1979-05-27T07:32:00Z",
    ],
)
def test_no_text_raises(read, text):
    assert read(text).findings


TABLES = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=4) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from([*{part for key in field_types() for part in key.split(".")}, "x", "a b"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["training", "model", "quantize", "data", "launch", "float8", "x"]), TABLES))
def test_any_toml_gives_a_config_whose_broken_keys_stand_at_their_defaults(tmp_path_factory, tables):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text("\n".join(f"{toml_key(name)} = {toml_value(value)}" for name, value in tables.items()), "utf-8")
    loaded = load(path, environ={})
    assert [key for key in loaded.broken if value_of(loaded.config, key) != value_of(Config(), key)] == []
    assert bool(loaded.broken) <= bool(loaded.findings)
    assert all(str(finding) and finding.file for finding in loaded.findings)


def test_a_file_of_something_else_gets_a_hundred_findings_and_a_count_and_soon(read):
    lines = "".join(f"[other{table}]\n" + "".join(f"key{key} = 1\n" for key in range(200)) for table in range(60))
    begun_s = time.process_time()
    loaded = read("[training]\n" + "".join(f"key{key} = 1\n" for key in range(3000)) + lines)
    assert time.process_time() - begun_s < 5
    assert len(loaded.findings) == 101
    assert loaded.findings[-1].message.startswith("2,960 more keys or tables of ")  # each table counts as one
    assert loaded.broken == frozenset(field_types())
