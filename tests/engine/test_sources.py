"""How a config is read: which source wins, where each value came from, and all that is wrong in one pass."""

import subprocess
import sys

import pytest

from engine.config import Config
from engine.keys import field_types, value_of
from engine.reading.toml_text import toml_value
from engine.sources import Loaded, Origin, load, locate, preset_names, preset_text, split_flags


def lines_of(loaded):
    """(rule, line, key) of each finding."""
    return [(finding.rule, finding.line, finding.key) for finding in loaded.findings]


# Which source wins, and where a value came from


def test_nothing_given_is_all_defaults():
    loaded = load(environ={})
    assert loaded == Loaded(Config(), dict.fromkeys(field_types(), Origin("default")), (), frozenset(), "titan")


def test_each_source_goes_over_the_one_before(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[training]\nsteps = 2\nseq_len = 2\nloss_chunks = 2\n")
    loaded = load(
        path,
        preset="quickstart",
        environ={"TITAN_TRAINING__SEQ_LEN": "3", "TITAN_TRAINING__LOSS_CHUNKS": "3"},
        flags=split_flags(["--training.loss_chunks", "4"])[1],
    )
    training = loaded.config.training
    assert (training.local_batch_size, training.steps, training.seq_len, training.loss_chunks) == (8, 2, 3, 4)
    kinds = {
        key: loaded.origins[f"training.{key}"].kind for key in ("local_batch_size", "steps", "seq_len", "loss_chunks")
    }
    assert list(kinds.values()) == ["preset", "file", "environment", "flag"]
    assert loaded.origins["training.dataset_path"].kind == "default"
    assert loaded.findings == ()


def test_every_key_has_an_origin(read):
    assert read("[training]\nsteps = 1\n").origins.keys() == field_types().keys()


def test_an_origin_names_file_and_line(read, tmp_path):
    loaded = read("# a\n\n[model]\nname = 'llama3'\nshape = {n_layers = 2,\tdim = 64}\n[training]\nsteps = 1 # b\n")
    path = str(tmp_path / "run.toml")
    places = {key: locate(loaded.origins, key) for key in ("model.name", "model.shape.dim", "training.steps")}
    assert places == {
        "model.name": (path, 4, None),
        "model.shape.dim": (path, 5, None),
        "training.steps": (path, 7, None),
    }


def test_an_origin_in_a_preset_names_its_line():
    loaded = load(preset="quickstart", environ={})
    origin = loaded.origins["training.seq_len"]
    assert (origin.kind, origin.file, origin.name) == ("preset", "presets/quickstart.toml", "quickstart")
    assert preset_text("quickstart").splitlines()[origin.line - 1].startswith("seq_len = ")


def test_an_origin_on_the_command_line_or_in_the_environment_names_itself(read):
    loaded = read(None, "--no-data.shuffle --training.steps=3", TITAN_COMPILE__ENABLE="true")
    keys = ("data.shuffle", "training.steps", "compile.enable", "debug.seed")
    assert [locate(loaded.origins, key)[2] for key in keys] == [
        "flag --no-data.shuffle",
        "flag --training.steps",
        "environment TITAN_COMPILE__ENABLE",
        "default",
    ]


def test_a_list_or_table_is_replaced_as_a_whole(read):
    loaded = read("[data.mixture]\na = 1\n", "--data.mixture {b=2}")
    assert loaded.config.data.mixture == {"b": 2.0}


@pytest.mark.parametrize(
    ("given", "stem"), [({}, "titan"), ({"preset": "fsdp-8b"}, "fsdp-8b"), ({"preset": "nope"}, "nope")]
)
def test_a_run_is_named_after_its_preset(given, stem):
    assert load(environ={}, **given).stem == stem


def test_a_run_is_named_after_its_file_even_over_a_preset(tmp_path):
    path = tmp_path / "my run.v2.toml"
    path.touch()
    assert load(path, preset="fsdp-8b", environ={}).stem == "my run.v2"


# The environment


def test_a_nested_key_is_set_by_a_variable_in_any_case(read):
    loaded = read(None, TITAN_QUANTIZE__DENSE__FLOAT8__ENABLE="true", TITAN_training__Seq_Len="64")
    assert loaded.config.quantize.dense.float8.enable
    assert loaded.config.training.seq_len == 64
    assert loaded.findings == ()


@pytest.mark.parametrize(
    "name", ["TITAN_HOME", "TITAN_", "TITAN__X", "TITAN_X__", "XTITAN_A__B", "titan_training__steps", "A__B"]
)
def test_other_variables_are_not_ours(read, name):
    loaded = read(None, **{name: "oops"})
    assert (loaded.config, loaded.findings) == (Config(), ())


def test_an_unknown_variable_is_a_finding(read):
    loaded = read(None, TITAN_TRAINING__SEQLEN="8")
    (finding,) = loaded.findings
    assert (finding.rule, finding.key, finding.source) == (
        "S101",
        "training.seqlen",
        "environment TITAN_TRAINING__SEQLEN",
    )
    assert finding.fix == "write TITAN_TRAINING__SEQ_LEN"


def test_two_variables_for_one_key_are_a_finding(read):
    loaded = read(None, TITAN_TRAINING__steps="4", TITAN_TRAINING__STEPS="3")
    (finding,) = loaded.findings
    assert finding.message == "TITAN_TRAINING__steps and TITAN_TRAINING__STEPS set the same key"
    assert "training.steps" in loaded.broken
    assert loaded.config.training.steps == Config().training.steps


def test_the_environment_is_that_of_the_process_where_none_is_given(monkeypatch):
    monkeypatch.setenv("TITAN_TRAINING__STEPS", "7")
    assert load().config.training.steps == 7


def test_bytes_of_the_environment_that_are_not_text_are_a_finding(read):
    loaded = read(None, TITAN_JOB__NAME="a\udcff")
    assert lines_of(loaded) == [("S102", None, "job.name")]
    assert loaded.config.job.name == ""


# Flags


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("--training.seq_len 8192", "training.seq_len", 8192),
        ("--training.global_batch_size -1", "training.global_batch_size", -1),
        ("--training.local_batch_size auto", "training.local_batch_size", "auto"),
        ("--compile.enable", "compile.enable", True),
        ("--compile.enable false", "compile.enable", False),
        ("--compile.enable=true", "compile.enable", True),
        ("--no-data.shuffle", "data.shuffle", False),
        ("--compile.enable --no-compile.enable", "compile.enable", False),
        ("--training.steps 1 --training.steps 2", "training.steps", 2),
        ("--training.steps oops --training.steps 2", "training.steps", 2),
        ("--job.name 123", "job.name", "123"),
        ("--training.dataset_path=true", "training.dataset_path", "true"),
        ("--model.flavor 8B", "model.flavor", "8B"),
        ('--model.flavor "8B"', "model.flavor", "8B"),
        ("--optimizer.lr 1e-4", "optimizer.lr", 1e-4),
        ("--optimizer.lr 1", "optimizer.lr", 1.0),
        ("--compile.components model", "compile.components", ("model",)),
        ("--compile.components=model,loss", "compile.components", ("model", "loss")),
        ("--launch.slurm.time 12:00:00", "launch.slurm.time", "12:00:00"),
        ("--activation_checkpoint.selective_ac_option 2", "activation_checkpoint.selective_ac_option", 2),
        ('--data.mixture {"a.txt"=0.5,b=1}', "data.mixture", {"a.txt": 0.5, "b": 1.0}),
    ],
)
def test_a_flag_sets_its_key(read, flags, key, value):
    loaded = read(None, flags)
    assert loaded.findings == ()
    assert value_of(loaded.config, key) == value
    assert type(value_of(loaded.config, key)) is type(value)


@pytest.mark.parametrize(
    ("flags", "message", "fix"),
    [
        ("--training.seq_len", "--training.seq_len needs a value", "write --training.seq_len=VALUE"),
        ("--job.name", "--job.name needs a value", "write --job.name=VALUE"),
        ("--training.seq_len --json", '"--json" is text; seq_len wants a whole number of at least 1', None),
        (
            "--no-training.seq_len",
            "--no-training.seq_len is for keys that are true or false",
            "write --training.seq_len VALUE",
        ),
        ("--no-compile.enable=true", "--no-compile.enable takes no value", "write --compile.enable=false"),
        ("--compile.enable=1", "1 is a number; enable wants true or false", "write true"),
        ("--training.seq_len 8k", '"8k" is text; seq_len wants a whole number of at least 1', None),
        ("--training.seqlen 8", "unknown key seqlen in [training]: it is spelled training.seq_len", None),
        ("--no-compile.enabled", "unknown key enabled in [compile]: the nearest is compile.enable", None),
    ],
)
def test_a_wrong_flag_is_one_finding(read, flags, message, fix):
    (finding,) = read(None, flags).findings
    assert finding.message == message
    assert finding.fix == (fix or finding.fix)
    assert finding.source == f"flag {flags.split()[0].partition('=')[0]}"


# What must pass


@pytest.mark.parametrize("name", preset_names())
def test_c52_every_preset_is_read_without_a_finding(name):
    loaded = load(preset=name, environ={})
    assert (loaded.findings, loaded.broken) == ((), frozenset())
    assert loaded.origins["cluster.gpu"].kind == "preset"


@pytest.mark.parametrize("key", field_types())
def test_c52_a_key_is_accepted_at_its_own_default(read, key):
    value = value_of(Config(), key)
    if value is not None:
        loaded = read(f"{key} = {toml_value(value)}\n")
        assert (loaded.config, loaded.findings) == (Config(), ())
        assert loaded.origins[key].line == 1


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "[training]\n", "[quantize.dense]\n[launch]\n", "\ufeff[training]\r\nsteps = 1"]
)
def test_c52_a_text_that_says_little_is_accepted(read, text):
    assert read(text).findings == ()


# Cost


@pytest.mark.parametrize("module", ["torch", "tomlkit", "difflib", "rich", "numpy"])
def test_reading_a_sound_config_does_not_import(module):
    code = (
        f"import sys, engine.sources as s; s.load(preset='quickstart', environ={{}}); print({module!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_config_without_a_name_of_its_own_is_called_titan():
    assert load(".", environ={}).stem == "titan"
