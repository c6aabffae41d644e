"""The field cases that a check of the config alone answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.config import Config
from engine.facts import Facts
from engine.hardware import Machine
from engine.keys import field_types, value_of, with_values
from engine.rules import Report, check
from engine.sources import Loaded, load, preset_names

Judge = Callable[..., Report]

TP, PP, CP = (f"parallelism.{axis}_parallel_degree" for axis in ("tensor", "pipeline", "context"))
SHARD = "parallelism.data_parallel_shard_degree"
REPLICATE = "parallelism.data_parallel_replicate_degree"
SCHEDULE = "parallelism.pipeline_parallel_schedule"
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"
LAYERS = "parallelism.pipeline_parallel_layers_per_stage"
LOCAL = "training.local_batch_size"
FLOAT8 = "quantize.dense.float8.enable"
ASYNC_TP = "parallelism.enable_async_tensor_parallel"


def only(report: Report) -> Any:
    """The one finding of a report."""
    [finding] = report.findings
    return finding


# ── C01 ──


def test_c01_tp_beyond_the_kv_heads_is_refused_with_the_legal_list(judge: Judge) -> None:
    heads = {"model.shape.n_heads": 32, "model.shape.n_kv_heads": 8}
    finding = only(judge(heads | {TP: 16}, world=16))
    assert (finding.rule, finding.fix) == ("P101", "set it to 1, 2, 4 or 8")
    assert "= 16 " in finding.message
    assert " 8 KV heads" in finding.message


def test_c01_a_degree_that_divides_only_the_query_heads_is_refused(judge: Judge) -> None:
    shape = {"model.shape.n_heads": 28, "model.shape.n_kv_heads": 4, "model.shape.dim": 28 * 32}
    report = judge(shape | {TP: 7, "model.shape.ffn_dim": 770, "training.seq_len": 252}, world=7)
    assert (only(report).rule, only(report).fix) == ("P101", "set it to 1, 2 or 4")


def test_c01_the_degree_is_judged_beside_heads_that_do_not_fit_the_width(judge: Judge) -> None:
    report = judge({"model.shape.n_heads": 28, "model.shape.n_kv_heads": 4, TP: 7, "training.seq_len": 252}, world=7)
    assert {finding.rule: finding.fix for finding in report.findings}["P101"] == "set it to 1, 2 or 4"


def test_c01_what_the_way_out_mends_too_is_not_told_beside_it(judge: Judge) -> None:
    heads = {"model.shape.n_heads": 32, "model.shape.n_kv_heads": 8}
    # 16 leaves data_parallel_shard_degree no whole value; 8, the largest that is legal, does.
    assert only(judge(heads | {TP: 16}, world=8)).rule == "P101"
    # 8 leaves it none either.
    assert {finding.rule for finding in judge(heads | {TP: 16}, world=12).findings} == {"P101", "P103"}


# ── C02 ──


def test_c02_a_product_that_is_not_the_world_size_shows_both(judge: Judge) -> None:
    finding = only(judge({SHARD: 8, CP: 8}))
    assert finding.rule == "P102"
    assert "64 ≠ 8" in finding.message


def test_c02_the_open_degree_is_the_exact_quotient(judge: Judge) -> None:
    report = judge({SHARD: -1, TP: 2, CP: 2})
    assert report.plan is not None
    assert report.plan.mesh.dp_shard == 2


def test_c02_a_quotient_is_never_floored(judge: Judge) -> None:
    report = judge({SHARD: -1, TP: 3, "training.seq_len": 258, "model.shape.n_kv_heads": 3, "model.shape.n_heads": 3,
                    "model.shape.dim": 192})  # fmt: skip
    assert (only(report).rule, report.plan) == ("P103", None)
    assert "8 % 3 = 2" in only(report).message


@pytest.mark.parametrize("edits", [{SHARD: -2}, {SHARD: 0}, {SHARD: -1, REPLICATE: -1}, {TP: -1}, {PP: 0}])
def test_c02_a_degree_that_is_no_number_of_ranks_is_refused(judge: Judge, edits: dict[str, int]) -> None:
    assert only(judge(edits)).rule in {"P104", "P105", "P108", "P109"}


# ── C04 ──


def test_c04_thirty_layers_over_four_ranks_lose_none(judge: Judge) -> None:
    report = judge({"model.shape.n_layers": 30, PP: 4, LOCAL: 4})
    assert report.plan is not None
    assert [len(stage.layers) for stage in report.plan.stages] == [7, 8, 8, 7]
    assert [layer for stage in report.plan.stages for layer in stage.layers] == list(range(30))
    assert sum(stage.parameters for stage in report.plan.stages) == report.plan.parameters


def test_c04_chunks_that_ranks_cannot_share_evenly_are_refused_with_the_legal_sizes(judge: Judge) -> None:
    edits = {"model.shape.n_layers": 80, PP: 16, LAYERS: 2, SCHEDULE: "Interleaved1F1B", LOCAL: 16}
    finding = only(judge(edits, world=16))
    assert finding.rule == "P111"
    assert finding.fix.startswith("set it to 1 or 5, or leave it out")


@pytest.mark.parametrize("size", [1, 5])
def test_c04_a_legal_chunk_size_holds_every_layer_once(judge: Judge, size: int) -> None:
    edits = {"model.shape.n_layers": 80, PP: 16, LAYERS: size, SCHEDULE: "Interleaved1F1B", LOCAL: 16}
    report = judge(edits, world=16)
    assert report.plan is not None
    assert sorted(layer for stage in report.plan.stages for layer in stage.layers) == list(range(80))
    assert sum(stage.parameters for stage in report.plan.stages) == report.plan.parameters


def test_c04_more_stages_than_layers_are_refused(judge: Judge) -> None:
    assert only(judge({PP: 8, SCHEDULE: "GPipe", "model.shape.n_layers": 7})).rule == "P112"


# ── C06 ──


def accepted(judge: Judge, schedule: str, **more: Any) -> list[int]:
    """Numbers of microbatches from 1 to 16 that a schedule takes on four ranks."""
    return [
        count for count in range(1, 17) if judge({PP: 4, SCHEDULE: schedule, LOCAL: count} | more, world=4).ok
    ]  # fmt: skip


@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "InterleavedZeroBubble"])
def test_c06_interleaved_schedules_take_rounds_of_equal_size(judge: Judge, schedule: str) -> None:
    assert accepted(judge, schedule) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16]


@pytest.mark.parametrize("schedule", ["GPipe", "LoopedBFS", "ZBVZeroBubble"])
def test_c06_some_schedules_take_any_number(judge: Judge, schedule: str) -> None:
    assert accepted(judge, schedule) == list(range(1, 17))


@pytest.mark.parametrize(("schedule", "least"), [("1F1B", 4), ("DualPipeV", 8)])
def test_c06_some_schedules_need_a_microbatch_for_every_stage(judge: Judge, schedule: str, least: int) -> None:
    assert accepted(judge, schedule) == list(range(least, 17))


def test_c06_a_microbatch_that_does_not_divide_the_batch_is_refused(judge: Judge) -> None:
    finding = only(judge({PP: 4, LOCAL: 8, MICROBATCH: 3}))
    assert (finding.rule, finding.fix) == ("P116", "set it to 1, 2, 4 or 8")


# ── C08 ──


@pytest.mark.parametrize(("cp", "tp", "factor"), [(4, 2, 8), (2, 4, 8), (2, 3, 12), (4, 4, 16), (8, 1, 16), (1, 4, 4)])
def test_c08_the_least_factor_of_a_sequence(base: Config, cp: int, tp: int, factor: int) -> None:
    assert Facts(with_values(base, {CP: cp, TP: tp})).sequence_pieces == factor


@pytest.mark.parametrize(("cp", "tp", "factor"), [(4, 2, 8), (2, 3, 6), (8, 1, 8)])
@pytest.mark.parametrize(
    "unbalanced",
    [
        {"parallelism.context_parallel_load_balance": "none"},
        {"parallelism.context_parallel_method": "ulysses"},
    ],
    ids=["none", "ulysses"],
)
def test_c08_without_balance_a_sequence_is_cut_once_a_rank(
    base: Config, unbalanced: dict[str, str], cp: int, tp: int, factor: int
) -> None:
    assert Facts(with_values(base, {CP: cp, TP: tp} | unbalanced)).sequence_pieces == factor


def test_c08_a_sequence_that_does_not_split_is_refused_with_both_neighbours(judge: Judge) -> None:
    finding = only(judge({TP: 4, CP: 4, "training.seq_len": 4104}, world=16))
    assert (finding.rule, finding.fix) == ("P110", "set seq_len to 4096 or 4112")


@pytest.mark.parametrize("seq_len", [4096, 4112])
def test_c08_what_is_offered_is_accepted(judge: Judge, seq_len: int) -> None:
    assert judge({TP: 4, CP: 4, "training.seq_len": seq_len}, world=16).findings == ()


# ── C10 ──


def test_c10_a_vocabulary_that_tp_does_not_divide_is_split_unevenly(judge: Judge) -> None:
    assert judge({TP: 2, "model.shape.vocab_size": 50_257}).ok


# ── C11 ──


def test_c11_float8_refuses_tokens_that_are_no_blocks_of_16(judge: Judge) -> None:
    finding = only(judge({FLOAT8: True, "training.seq_len": 1000, LOCAL: 1}))
    assert finding.rule == "Q301"
    assert "1000 % 16 = 8" in finding.message
    assert finding.fix == "set seq_len to 992 or 1008"


def test_c11_two_sequences_make_whole_blocks_together(judge: Judge) -> None:
    assert judge({FLOAT8: True, "training.seq_len": 1000, LOCAL: 2}).findings == ()


def test_c11_tokens_are_counted_after_context_parallel(judge: Judge) -> None:
    assert only(judge({FLOAT8: True, CP: 8, "training.seq_len": 48, LOCAL: 1})).rule == "Q301"


def test_c11_tokens_are_counted_by_pipeline_microbatch(judge: Judge) -> None:
    assert only(judge({FLOAT8: True, PP: 2, "training.seq_len": 1000, LOCAL: 2})).rule == "Q301"


def test_c11_a_weight_gradient_in_high_precision_takes_any_number_of_tokens(judge: Judge) -> None:
    recipe = {"quantize.dense.float8.recipe_name": "rowwise_with_gw_hp"}
    assert judge({FLOAT8: True, "training.seq_len": 1000, LOCAL: 1} | recipe).findings == ()


def test_c11_widths_are_judged_after_tensor_parallel(judge: Judge) -> None:
    assert judge({FLOAT8: True, "model.shape.ffn_dim": 2736}).findings == ()
    finding = only(judge({FLOAT8: True, "model.shape.ffn_dim": 2736, TP: 2}))
    assert finding.rule == "Q302"
    assert "2736 / 2 = 1368 (1368 % 16 = 8)" in finding.message


def test_c11_a_narrow_layer_is_skipped_and_listed(judge: Judge) -> None:
    narrow = {"model.shape.n_kv_heads": 1, "model.shape.head_dim": 8}
    report = judge({FLOAT8: True} | narrow)
    assert report.ok
    [setting] = [setting for setting in report.settings if setting.key == FLOAT8]
    assert "skips attention.wk (256 x 8), attention.wv (256 x 8): no multiples of 16" in setting.reason


def test_c11_a_filtered_layer_is_not_judged(judge: Judge) -> None:
    edits = {FLOAT8: True, "model.shape.ffn_dim": 2736, TP: 2}
    assert judge(edits | {"quantize.dense.float8.filter_fqns": ("output", "feed_forward")}).findings == ()


def test_c11_a_filter_of_one_block_leaves_the_others_judged(judge: Judge) -> None:
    edits = {FLOAT8: True, "model.shape.ffn_dim": 2736, TP: 2}
    assert only(judge(edits | {"quantize.dense.float8.filter_fqns": ("output", "layers.0.")})).rule == "Q302"


def test_c11_the_output_head_is_judged_where_no_filter_leaves_it_out(judge: Judge) -> None:
    edits = {FLOAT8: True, "model.shape.vocab_size": 1040, TP: 2}
    assert judge(edits).findings == ()
    assert "output 1040 / 2 = 520" in only(judge(edits | {"quantize.dense.float8.filter_fqns": ()})).message


@pytest.mark.parametrize("gpu", ["a100-40", "a100-80"])
def test_c11_float8_needs_hopper_or_emulation(judge: Judge, gpu: str) -> None:
    report = judge({FLOAT8: True, "cluster.gpu": gpu})
    assert (only(report).rule, report.exit_code) == ("H702", 3)
    assert judge({FLOAT8: True, "cluster.gpu": gpu, "quantize.dense.float8.emulate": True}).ok


def test_c11_float8_is_allowed_on_the_cpu(judge: Judge, no_gpu: Machine) -> None:
    assert no_gpu.kind == "cpu"
    assert judge({FLOAT8: True, "cluster.gpu": "cpu"}, world=2).findings == ()


@pytest.mark.parametrize(("gpu", "fits"), [("h200", False), ("mi300x", False), ("b200", True), ("gb200", True)])
def test_c11_mxfp8_needs_blackwell(judge: Judge, gpu: str, fits: bool) -> None:
    assert judge({"quantize.dense.mx.enable": True, "cluster.gpu": gpu}).ok is fits


# ── C13 ──


@pytest.mark.parametrize("compiled", [{}, {"compile.enable": True, "compile.components": ("loss",)}], ids=["a", "b"])
def test_c13_async_tp_without_compile_of_the_model_is_refused(judge: Judge, compiled: dict[str, Any]) -> None:
    report = judge({ASYNC_TP: True, TP: 2} | compiled)
    assert only(report).rule == "Q306"
    [setting] = [setting for setting in report.settings if setting.key == ASYNC_TP]
    assert setting.state == "rejected"


def test_c13_async_tp_on_one_rank_warns_and_is_inactive(judge: Judge) -> None:
    report = judge({ASYNC_TP: True, "compile.enable": True})
    assert (only(report).rule, only(report).severity) == ("Q307", "warning")
    [setting] = [setting for setting in report.settings if setting.key == ASYNC_TP]
    assert (setting.state, setting.reason) == ("inactive", "tp=1")


def test_c13_async_tp_with_compile_passes(judge: Judge) -> None:
    assert judge({ASYNC_TP: True, TP: 2, "compile.enable": True}).findings == ()


# ── C14 ──


@pytest.mark.parametrize("schedule", ["ZBVZeroBubble", "DualPipeV", "InterleavedZeroBubble"])
def test_c14_zero_bubble_with_compiled_blocks_is_refused_with_both_ways_out(judge: Judge, schedule: str) -> None:
    finding = only(judge({PP: 2, SCHEDULE: schedule, LOCAL: 4, "compile.enable": True}))
    assert finding.rule == "P117"
    assert finding.fix == "set it to Interleaved1F1B, or compile.enable to false"


@pytest.mark.parametrize("compiled", [{}, {"compile.enable": True, "compile.components": ("loss",)}])
def test_c14_zero_bubble_without_compiled_blocks_passes(judge: Judge, compiled: dict[str, Any]) -> None:
    assert judge({PP: 2, SCHEDULE: "ZBVZeroBubble", LOCAL: 4} | compiled).findings == ()


def test_c14_a_schedule_without_a_pipeline_is_not_judged(judge: Judge) -> None:
    report = judge({SCHEDULE: "ZBVZeroBubble", "compile.enable": True})
    assert report.findings == ()
    [setting] = [setting for setting in report.settings if setting.key == SCHEDULE]
    assert (setting.state, setting.reason) == ("inactive", "pp=1")


@pytest.mark.parametrize(("size", "ok"), [(1, False), (2, True), (4, False)])
def test_c14_zbv_needs_exactly_two_stages_a_rank(judge: Judge, size: int, ok: bool) -> None:
    assert judge({PP: 2, SCHEDULE: "ZBVZeroBubble", LAYERS: size, LOCAL: 4}).ok is ok


def test_c14_zero_bubble_with_resharding_is_refused(judge: Judge) -> None:
    edits = {PP: 2, SCHEDULE: "ZBVZeroBubble", "parallelism.fsdp_reshard_after_forward": "always"}
    finding = only(judge(edits))
    assert finding.rule == "P118"
    assert "trains wrong without an error" in finding.message


# ── C15 ──


def test_c15_tied_weights_over_a_pipeline_are_refused(judge: Judge) -> None:
    assert only(judge({"model.shape.tie_embeddings": True, PP: 2})).rule == "P119"


def test_c15_tied_weights_count_once(judge: Judge) -> None:
    shape = {"model.shape.vocab_size": 151_936, "model.shape.dim": 1024}
    tied, untied = (judge(shape | {"model.shape.tie_embeddings": tie}).plan for tie in (True, False))
    assert tied is not None
    assert untied is not None
    assert untied.parameters - tied.parameters == 155_582_464


# ── C27 ──


def test_c27_more_warmup_than_steps_states_the_change(judge: Judge) -> None:
    finding = only(judge({"lr_scheduler.warmup_steps": 12}))
    assert (finding.rule, finding.severity) == ("L401", "warning")
    assert "rises through all of them" in finding.message


@pytest.mark.parametrize(("ratio", "fits"), [(0.8, True), (0.81, True), (0.9, False), (1.0, False), (0.0, True)])
def test_c27_a_decay_that_does_not_fit_states_the_change(judge: Judge, ratio: float, fits: bool) -> None:
    findings = judge({"lr_scheduler.warmup_steps": 2, "lr_scheduler.decay_ratio": ratio}).findings
    assert [finding.rule for finding in findings] == ([] if fits else ["L402"])


# ── C48 ──


def test_c48_eight_billion_parameters_in_fp32_over_eight_gpus() -> None:
    report = check(load(preset="fsdp-8b", environ={}))
    assert report.plan is not None
    memory = report.plan.memory
    assert round(memory.static_bytes / 2**30, 2) == 14.96
    assert round(memory.optimizer_bytes / 2**30, 2) == 7.48


# ── C52 ──


@pytest.mark.parametrize("key", sorted(field_types()))
def test_c52_a_key_left_out_has_its_default(base: Config, no_gpu: Machine, key: str) -> None:
    config = with_values(base, {key: value_of(Config(), key)})
    loaded = Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan")
    assert no_gpu.kind == "cpu"
    assert check(loaded).ok


@pytest.mark.parametrize(
    "edits",
    [
        {},
        {"training.global_batch_size": 64, LOCAL: 1},
        {"training.global_batch_size": -1, LOCAL: 4},
        {TP: 4, "model.shape.n_kv_heads": 4},
        {PP: 8, "model.shape.n_layers": 8, LOCAL: 8},
        {PP: 8, "model.shape.n_layers": 8, SCHEDULE: "GPipe"},
        {"model.shape.vocab_size": 50_257},
        {REPLICATE: 2, SHARD: 4, "training.global_batch_size": 32},
        {LOCAL: "auto"},
        {LOCAL: "auto", PP: 4},
    ],
    ids=str,
)
def test_c52_a_sound_config_passes(judge: Judge, edits: dict[str, Any]) -> None:
    assert judge(edits).findings == ()


def test_c52_the_defaults_pass(no_gpu: Machine) -> None:
    assert no_gpu.kind == "cpu"
    assert check(load(environ={})).findings == ()


@pytest.mark.parametrize("name", preset_names())
def test_c52_every_preset_passes_at_its_world_size(name: str) -> None:
    report = check(load(preset=name, environ={}))
    assert report.findings == ()
    assert report.plan is not None
    assert report.plan.mesh.world_size == report.plan.world_size
