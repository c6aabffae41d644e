"""What was meant by a key that does not exist."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reading.origins import Origin
from engine.reading.unknown_keys import dotted, sections, unknown_key, unknown_table, variable

FILE = Origin("file", "run.toml", 3)
FLAG = Origin("flag", name="--x.y")
VARIABLE = Origin("environment", name="TITAN_X__Y")


@pytest.mark.parametrize(
    ("key", "message", "fix"),
    [
        (
            "train.seqlen",
            "unknown key seqlen in [train]: titan has no section [train]; seq_len belongs to [training]",
            "write seq_len in [training]",
        ),
        (
            "learning_rate",
            "unknown key learning_rate at the top level: titan calls it optimizer.lr",
            "write lr in [optimizer]",
        ),
        (
            "lr_scheduler.warmup-steps",
            "unknown key warmup-steps in [lr_scheduler]: keys are written with underscores",
            "write warmup_steps",
        ),
        (
            "steps",
            "unknown key steps at the top level: steps belongs to [training] and [validation]",
            "write steps in [training] or steps in [validation]",
        ),
        (
            "training.tensor_parallel_degree",
            "unknown key tensor_parallel_degree in [training]: tensor_parallel_degree belongs to [parallelism]",
            "write tensor_parallel_degree in [parallelism]",
        ),
        ("training.Seq_Len", "unknown key Seq_Len in [training]: it is spelled training.seq_len", "write seq_len"),
        ("training.seq_lenn", "unknown key seq_lenn in [training]: the nearest is training.seq_len", "write seq_len"),
        (
            "optimizer.learning_rate",
            "unknown key learning_rate in [optimizer]: titan calls it optimizer.lr",
            "write lr",
        ),
        (
            "training.batch_size",
            "unknown key batch_size in [training]: it is now training.local_batch_size",
            "write local_batch_size",
        ),
        (
            "training.enable_loss_parallel",
            "unknown key enable_loss_parallel in [training]: it is now parallelism.disable_loss_parallel",
            "write disable_loss_parallel in [parallelism] (with the opposite value)",
        ),
        (
            "experimental.context_parallel_degree",
            "unknown key context_parallel_degree in [experimental]: titan has no section [experimental];"
            " it is now parallelism.context_parallel_degree",
            "write context_parallel_degree in [parallelism]",
        ),
        (
            "metrics.enable_color_printing",
            "unknown key enable_color_printing in [metrics]: titan has no such setting",
            "remove it: colours follow the terminal and NO_COLOR",
        ),
        (
            "metrics.zzz",
            "unknown key zzz in [metrics]",
            "remove it; [metrics] has log_freq, breakdown_freq, enable_tensorboard, enable_wandb, prometheus_file",
        ),
        (
            "data.mixture.a",
            "unknown key a in [data.mixture]: data.mixture is one key, not a section",
            "give data.mixture itself: it wants a table of names with numbers above 0",
        ),
        (
            "model.shape",
            "unknown key shape in [model]: [model.shape] is a section",
            "name one of its keys: model.shape.dim, model.shape.n_layers, model.shape.n_heads, model.shape.n_kv_heads,"
            " model.shape.head_dim, model.shape.ffn_dim, model.shape.vocab_size, model.shape.rope_theta,"
            " model.shape.tie_embeddings",
        ),
        (
            '"training.seq_len"',
            'unknown key "training.seq_len" at the top level: quotes make one name of it',
            "write seq_len in [training]",
        ),
        (
            "checkpoint.no_enable",
            "unknown key no_enable in [checkpoint]: keys have no negative form",
            "set checkpoint.enable to false, or give the flag --no-checkpoint.enable",
        ),
    ],
)
def test_an_unknown_key_gets_its_reason_and_its_way_out(key, message, fix):
    finding = unknown_key(key, FILE).finding
    assert (finding.message, finding.fix) == (message, fix)
    assert (finding.rule, finding.severity, finding.key) == ("S101", "error", key)
    assert (finding.file, finding.line, finding.source) == ("run.toml", 3, None)


@pytest.mark.parametrize(
    ("origin", "fix", "source"),
    [
        (FLAG, "write --training.seq_len", "flag --x.y"),
        (VARIABLE, "write TITAN_TRAINING__SEQ_LEN", "environment TITAN_X__Y"),
    ],
)
def test_the_way_out_is_written_as_the_key_was(origin, fix, source):
    finding = unknown_key("training.seq_lenn", origin).finding
    assert (finding.fix, finding.source, finding.file) == (fix, source, None)


def test_a_key_that_was_surely_meant_is_handed_on():
    assert unknown_key("train.seqlen", FILE).meant == ("training.seq_len",)
    assert unknown_key("steps", FILE).meant == ("training.steps", "validation.steps")
    assert unknown_key("zzz", FILE).meant == ()


def table(name, *keys):
    found = unknown_table(name, [(f"{name}.{key}", FILE) for key in keys], Origin("file", "run.toml", 2))
    return [
        (unknown.finding.key, unknown.finding.line, unknown.finding.message, unknown.finding.fix) for unknown in found
    ]


def test_a_misspelled_section_is_one_finding_for_all_its_good_keys():
    assert table("trainning", "seq_len", "steps", "seqlenn") == [
        (
            "trainning",
            2,
            "unknown section [trainning]: its seq_len, steps belong to [training]",
            "rename it to [training]",
        ),
        (
            "trainning.seqlenn",
            3,
            "unknown key seqlenn in [trainning]: titan has no section [trainning]; the nearest is training.seq_len",
            "write seq_len in [training]",
        ),
    ]


def test_an_unknown_section_of_unknown_keys_is_one_finding():
    ((key, line, message, fix),) = table("banana", "x", "y")
    assert (key, line, message) == ("banana", 2, "unknown section [banana] with x, y")
    assert fix.startswith("remove it; the sections are job, cluster, model, training, parallelism, ")


def test_an_empty_unknown_section_is_a_finding():
    assert table("optimiser") == [
        (
            "optimiser",
            2,
            "unknown section [optimiser]",
            "rename it to [optimizer]; the sections are " + ", ".join(name for name in sections() if "." not in name),
        )
    ]


def test_a_section_that_is_no_more_is_one_finding():
    assert table("fault_tolerance", "enable", "group_size") == [
        (
            "fault_tolerance",
            2,
            "titan has no section [fault_tolerance]",
            "remove it, and see checkpoint and launch.max_restarts",
        )
    ]


def test_a_section_that_moved_is_renamed_at_once():
    assert table("quantize.linear.float8", "enable", "recipe_name")[0][3] == "rename it to [quantize.dense.float8]"


@pytest.mark.parametrize(
    ("path", "key"), [(("a", "b_c-1"), "a.b_c-1"), (("a.b",), '"a.b"'), (("a", ""), 'a.""'), (('"\n',), '"\\"\\n"')]
)
def test_a_path_is_written_as_toml_writes_it(path, key):
    assert dotted(path) == key


def test_a_variable_is_named_after_its_key():
    assert variable("quantize.dense.float8.enable") == "TITAN_QUANTIZE__DENSE__FLOAT8__ENABLE"


@given(st.lists(st.text(max_size=6), min_size=1, max_size=3), st.sampled_from([FILE, FLAG, VARIABLE]))
def test_any_name_gets_a_finding_of_one_line_each(path, origin):
    finding = unknown_key(dotted(path), origin).finding
    assert finding.fix
    assert "\n" not in finding.message + finding.fix + finding.key
