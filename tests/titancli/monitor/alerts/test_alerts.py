"""Alerts: each is raised by the cause that is planted for it, and by nothing else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Finding
from engine.features import FEATURES, READ_BY
from engine.keys import field_types, with_values
from engine.reading.toml_text import to_toml
from engine.rules import check
from engine.sources import load
from tests.titancli.monitor.planted import at, everywhere, on, on_stage
from tests.titancli.monitor.recorded import Recorded, recorded, stage_of
from titancli.monitor.alerts import ALERTS, alerts_of
from titancli.monitor.alerts.alert import Look
from titancli.monitor.diagnosis import diagnose
from titancli.monitor.fold import fold
from titancli.monitor.follow import Follower, State, read_config, read_plan
from titancli.monitor.rows import rows_of
from titancli.monitor.run_state import RunState

_SET = re.compile(r"(?:set|and) ([a-z_.0-9]+) = (\"[^\"]*\"|[^ ;(]+)|(?:remove|and remove) ([a-z_.0-9]+)")


def look_at(run: Recorded, *, state: State = "running", silent_s: float = 1.0) -> Look:
    seen = fold(RunState(), run.every())
    plan = seen.plan or {}
    diagnosis = diagnose(seen, plan)
    return Look(
        run="x",
        seen=seen,
        state=state,
        failure=seen.first_failure,
        config=tomllib.loads(to_toml(run.config)),
        plan=plan,
        rows=rows_of(seen, plan, diagnosis, {}),
        diagnosis=diagnosis,
        now=run.ended + silent_s,
    )


def raised_by(run: Recorded, **more: Any) -> dict[str, Finding]:
    return {finding.rule: finding for finding in alerts_of(look_at(run, **more))}


def edits_of(fix: str) -> dict[str, Any]:
    """The keys that a fix sets, with their values."""
    found: dict[str, Any] = {}
    for key, value, removed in _SET.findall(fix):
        found[key or removed] = tomllib.loads(f"x = {value}")["x"] if key else None
    return found


PRESETS = ("quickstart", "fsdp-8b", "2d-70b", "3d-405b", "4d-405b-long")
EIGHT = "fsdp-8b"
PIPELINED = {
    "parallelism.pipeline_parallel_degree": 4,
    "parallelism.data_parallel_shard_degree": 2,
    "training.local_batch_size": 16,
}
COMPUTED_TWICE = {"activation_checkpoint.mode": "full"}
TENSOR = {
    "parallelism.tensor_parallel_degree": 4,
    "parallelism.data_parallel_shard_degree": 2,
    "quantize.dense.float8.enable": False,
    "quantize.dense.float8.enable_fsdp_float8_all_gather": False,
}
CONTEXT = {
    "parallelism.context_parallel_degree": 4,
    "parallelism.data_parallel_shard_degree": 2,
    "training.seq_len": 32768,
    "training.local_batch_size": 1,
    "activation_checkpoint.mode": "full",
}
REPLICAS = {"parallelism.data_parallel_replicate_degree": 4, "parallelism.data_parallel_shard_degree": 2}
EAGER = {"compile.enable": False, "activation_checkpoint.mode": "selective", "training.local_batch_size": 1}


def begins(run: Recorded, rank: int) -> Mapping[str, Any]:
    return {"time": run.ended + 60.0, "rank": rank, "kind": "phase", "name": "build", "state": "begin"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_that_goes_as_planned_raises_nothing_but_what_another_setting_makes_faster(preset: str) -> None:
    found = raised_by(recorded(preset, steps=100, log_freq=50))
    assert found.keys() <= {"W206"}
    assert all("faster by plan" in finding.fix for finding in found.values())


CAUSES: dict[str, Callable[[], Recorded]] = {
    "W201": lambda: recorded(EIGHT, change=everywhere(0.3, "data_s")),
    "W202": lambda: recorded(EIGHT, change=everywhere(0.2, "host_s")),
    "W203": lambda: recorded(EIGHT, TENSOR, change=everywhere(0.2, "exposed_comm_s", "tp")),
    "W204": lambda: recorded(EIGHT, change=everywhere(0.2, "exposed_comm_s", "dp_shard")),
    "W205": lambda: recorded(EIGHT, CONTEXT, change=everywhere(0.2, "exposed_comm_s", "cp")),
    "W206": lambda: recorded(EIGHT, PIPELINED | COMPUTED_TWICE, change=everywhere(0.4, "bubble_s")),
    "W207": lambda: recorded(EIGHT, PIPELINED | COMPUTED_TWICE, change=on_stage(lambda rank: rank // 2, 2, 0.3)),
    "W208": lambda: recorded(EIGHT, change=on([3], 0.15, "compute_s")),
    "W209": lambda: recorded(EIGHT, change=everywhere(0.15, "compute_s")),
    "W210": lambda: recorded(EIGHT, of_memory=lambda *_: {"reserved_bytes": 92 << 30}),
    "W211": lambda: recorded(EIGHT, of_memory=lambda _, step: {"alloc_retries": step // 20}),
    "W212": lambda: recorded(EIGHT, of_step=lambda _, step: {"loss": None, "grad_norm": None} if step == 200 else {}),
    "W213": lambda: recorded(
        EIGHT, of_gpu=lambda *_: {"sm_pct": None, "dram_pct": None, "reasons": {"sm_pct": "permission"}}
    ),
    "W214": lambda: recorded(EIGHT, of_memory=lambda *_: {"peak_active_bytes": 90 << 30}),
    "W215": lambda: recorded(EIGHT, REPLICAS, change=everywhere(0.2, "exposed_comm_s", "dp_replicate")),
    "W216": lambda: recorded(EIGHT, of_step=lambda _, step: {"loss": 9.0} if step == 190 else {}),
    "W217": lambda: recorded(EIGHT, of_memory=lambda rank, _: {"ooms": 2} if rank == 5 else {}),
    "W218": lambda: recorded(EIGHT, of_step=lambda _, step: {"grad_norm": 40.0} if step == 180 else {}),
}


@pytest.mark.parametrize("id_", CAUSES)
def test_planted_cause_is_named(id_: str) -> None:
    assert id_ in raised_by(CAUSES[id_]())


@pytest.mark.parametrize("id_", CAUSES)
def test_planted_cause_is_the_worst_that_is_said_of_it(id_: str) -> None:
    # Where all computes for longer nothing else is wrong; W209 says so of any other cause too, after it.
    assert next(iter(raised_by(CAUSES[id_]()))) == id_


@pytest.mark.parametrize("id_", CAUSES)
def test_what_a_fix_sets_keeps_the_rules_and_does_something(id_: str) -> None:
    run = CAUSES[id_]()
    for finding in raised_by(run).values():
        edit = edits_of(finding.fix)
        if edit:
            loaded = load(preset=EIGHT, environ={})
            changed = with_values(run.config, edit)
            report = check(type(loaded)(changed, loaded.origins, (), frozenset(), "x"))
            assert report.ok, (finding.fix, report.findings)
            idle = {setting.key for setting in report.settings if setting.state != "active"}
            assert not idle & edit.keys()
            assert finding.key == next(iter(edit))


@pytest.mark.parametrize(
    ("id_", "words"),
    [
        ("W201", ("ranks 0-7 wait up to 23 % of the step for data", "node-000")),
        ("W203", ("exposed", "% by plan", "set parallelism.enable_async_tensor_parallel = true")),
        ("W204", ("FSDP's collectives", "never")),
        ("W205", ("context-parallel collectives",)),
        ("W207", ("stage 2 works 24 % longer", "layers: 8, 9, 9, 6")),
        ("W208", ("rank 3 (node-000, GPU-", "16 % longer than that of the other 7 ranks")),
        ("W209", ("16 % longer than planned", "most of it is compute")),
        ("W210", ("ranks 0-7 use up to 92.0 GiB of 95.0 GiB",)),
        ("W213", ("no GPU shows SM activity: permission", "NVreg_RestrictProfilingToAdminUsers=0")),
        ("W217", ("rank 5 ran out of memory 2 times",)),
    ],
)
def test_words_of_an_alert(id_: str, words: tuple[str, ...]) -> None:
    finding = raised_by(CAUSES[id_]())[id_]
    said = f"{finding.message}; {finding.fix}"
    assert [word for word in words if word not in said] == []


def test_every_alert_about_time_memory_learning_or_meters_has_a_planted_cause() -> None:
    assert {alert.id for alert in ALERTS if alert.id.startswith("W2")} == CAUSES.keys()


def test_keys_that_alerts_name_do_something_in_this_release() -> None:
    built = {feature.key for feature in FEATURES} | READ_BY.keys()
    named = {
        word
        for alert in ALERTS
        for text in (alert.fix, *(way.told for way in alert.ways), alert.key)
        for word in re.findall(r"[a-z_]+(?:\.[a-z_0-9]+)+", text)
    }
    assert named & field_types().keys() <= built
    assert "parallelism.pipeline_parallel_degree" in named


# ── not on noise ──


def test_healthy_run_of_one_h200_raises_nothing() -> None:
    run = Path(__file__).parents[1] / "recorded" / "h200-16-layers"
    seen, plan, config = Follower(run).read(), read_plan(run), read_config(run)
    diagnosis = diagnose(seen, plan)
    assert diagnosis.measured is not None
    look = Look(
        "h200",
        seen,
        "finished",
        None,
        config,
        plan,
        rows_of(seen, plan, diagnosis, {}),
        diagnosis,
        seen.last_time or 0.0,
    )
    assert look.advice is not None
    assert alerts_of(look) == ()


@pytest.mark.parametrize("part", [("data_s",), ("host_s",), ("exposed_comm_s", "dp_shard"), ("compute_s",)])
def test_less_than_a_twentieth_of_a_step_is_nobodys_trouble(part: tuple[str, ...]) -> None:
    assert raised_by(recorded(EIGHT, change=everywhere(0.03, *part))) == {}
    assert raised_by(recorded(EIGHT, change=on([3], 0.03, *part))) == {}


def test_hiccup_of_one_profile_is_no_slow_rank() -> None:
    assert "W208" not in raised_by(recorded(EIGHT, change=at({200}, on([3], 0.3, "compute_s"))))
    assert "W208" in raised_by(recorded(EIGHT, change=at({150, 200}, on([3], 0.3, "compute_s"))))


def test_one_profile_is_enough_for_a_rank_that_is_far_behind() -> None:
    assert "W208" in raised_by(recorded(EIGHT, steps=60, change=on([3], 0.15, "compute_s")))
    assert "W208" not in raised_by(recorded(EIGHT, steps=60, change=on([3], 0.07, "compute_s")))


def test_others_that_wait_for_a_slow_rank_are_no_trouble_of_the_links() -> None:
    assert raised_by(recorded(EIGHT, change=on([3], 0.09, "compute_s"))).keys() == {"W208"}


def test_ranks_that_are_all_unlike_have_no_slow_one() -> None:
    lag = {rank: 0.03 * rank for rank in range(8)}

    def uneven(rank: int, _: int, parts: Any) -> Any:
        return parts.plus(lag[rank] * parts.step_s, "compute_s")

    assert "W208" not in raised_by(recorded(EIGHT, change=uneven))


def test_rank_that_waits_for_data_is_told_as_that_and_not_as_slow() -> None:
    found = raised_by(recorded(EIGHT, change=on([3], 0.3, "data_s")))
    assert "rank 3 waits" in found["W201"].message
    assert "W208" not in found


def test_data_that_stalls_between_profiles_is_seen_where_the_host_waits_long() -> None:
    stalls = at({190}, everywhere(1.0, "data_s"))
    assert "W201" in raised_by(recorded(EIGHT, steps=190, change=stalls))


@pytest.mark.parametrize("id_", ["W201", "W202", "W204", "W208", "W209"])
def test_profile_of_an_attempt_before_raises_nothing(id_: str) -> None:
    run = CAUSES[id_]()
    seen = fold(RunState(), [*run.every(), *(begins(run, rank) for rank in range(8))])
    plan = seen.plan or {}
    diagnosis = diagnose(seen, plan)
    rows = rows_of(seen, plan, diagnosis, {})
    before = look_at(run)
    look = Look("x", seen, "running", None, before.config, plan, rows, diagnosis, run.ended + 61.0)
    assert [finding.rule for finding in alerts_of(look)] == []
    assert rows[0]["profiled_step"] == 200


def test_first_steps_raise_nothing() -> None:
    assert raised_by(recorded(EIGHT, steps=1, change=everywhere(0.9, "data_s"))) == {}
    assert raised_by(recorded(EIGHT, steps=1, log_freq=1, breakdown_freq=1, change=everywhere(0.9, "host_s"))) == {}


def test_retries_of_long_ago_are_over() -> None:
    early = recorded(EIGHT, steps=2000, of_memory=lambda _, step: {"alloc_retries": 0 if step < 50 else 7})
    assert raised_by(early) == {}


def test_loss_of_a_small_batch_varies_without_an_alert() -> None:
    shaky = recorded(EIGHT, of_step=lambda _, step: {"loss": 3.0 + (step * 7919 % 13) / 20})
    assert raised_by(shaky) == {}


@pytest.mark.parametrize("reason", ["not supported", "first look", "no data"])
def test_meters_that_nobody_can_switch_on_are_no_alert(reason: str) -> None:
    assert raised_by(recorded(EIGHT, of_gpu=lambda *_: {"sm_pct": None, "reasons": {"sm_pct": reason}})) == {}


def test_meters_that_one_gpu_shows_are_no_alert() -> None:
    shy = recorded(EIGHT, of_gpu=lambda rank, _: {"sm_pct": None, "reasons": {"sm_pct": "permission"}} if rank else {})
    assert raised_by(shy) == {}


def test_host_of_which_all_ranks_are_slow_is_named_instead_of_one_of_them() -> None:
    slow = recorded("3d-405b", steps=100, log_freq=50, change=on(range(136, 144), 0.3, "compute_s"))
    found = raised_by(slow)["W208"]
    assert found.message.startswith("host node-017 (ranks 136-143) is slow: its own time is ")
    assert found.message.endswith(" % longer than that of the other 7 hosts of its stage")
    assert "what else runs on node-017" in found.fix


@pytest.mark.parametrize(
    ("ranks", "who"), [(range(4, 8), "host node-001 (ranks 4-7)"), ([5], "rank 5 (node-001"), ([4, 5], "rank ")]
)
def test_of_two_hosts_the_slow_one_is_named_and_of_one_with_some_slow_ranks_the_rank(
    ranks: Collection[int], who: str
) -> None:
    found = raised_by(recorded(EIGHT, gpus_per_node=4, change=on(ranks, 0.2, "compute_s")))
    assert found["W208"].message.startswith(who)


def test_hosts_that_are_all_unlike_have_no_slow_one() -> None:
    def uneven(rank: int, _: int, parts: Any) -> Any:
        return parts.plus(0.06 * (rank // 2) * parts.step_s, "compute_s")

    assert "W208" not in raised_by(recorded(EIGHT, gpus_per_node=2, change=uneven))


# ── what is offered ──


def test_async_tensor_parallel_brings_compile_along() -> None:
    run = recorded(EIGHT, TENSOR | EAGER, change=everywhere(0.2, "exposed_comm_s", "tp"))
    assert edits_of(raised_by(run)["W203"].fix) == {
        "parallelism.enable_async_tensor_parallel": True,
        "compile.enable": True,
    }


def test_host_that_launches_too_slowly_is_helped_by_compile_first() -> None:
    run = recorded(EIGHT, EAGER, change=everywhere(0.2, "host_s"))
    assert edits_of(raised_by(run)["W202"].fix) == {"compile.enable": True}


def test_unbalanced_stages_are_cut_anew_where_layers_are_why() -> None:
    # 33 layers on 4 stages of at most 10: 10, 10, 10 and 3.
    uneven = PIPELINED | COMPUTED_TWICE | {"parallelism.pipeline_parallel_layers_per_stage": 10}
    run = recorded(EIGHT, uneven)
    layers = [len(stage.layers) for stage in run.plan.stages]
    most = max(layers)

    def by_layers(rank: int, _: int, parts: Any) -> Any:
        share = (most - layers[stage_of(run.plan, rank)]) / most
        freed_s = share * parts.compute_s
        return parts.plus(-freed_s, "compute_s").plus(freed_s, "bubble_s")

    found = raised_by(recorded(EIGHT, uneven, change=by_layers))
    assert ("W207" in found) == (most - sum(layers) / len(layers) > 0.06 * most), layers


def test_a_stage_that_is_slow_for_no_layer_is_not_cut_anew() -> None:
    assert edits_of(raised_by(CAUSES["W207"]())["W207"].fix) == {}


def test_memory_that_is_nearly_full_is_answered_by_what_leaves_room() -> None:
    edit = edits_of(raised_by(CAUSES["W210"]())["W210"].fix)
    assert edit
    assert edit.keys() <= {
        "activation_checkpoint.mode",
        "training.local_batch_size",
        "training.global_batch_size",
        "training.loss_chunks",
    }


def test_run_without_a_sound_config_is_judged_all_the_same() -> None:
    look = look_at(CAUSES["W204"]())
    bare = Look("x", look.seen, "running", None, {"training": 3}, look.plan, look.rows, look.diagnosis, look.now)
    finding = alerts_of(bare)[0]
    assert (finding.rule, edits_of(finding.fix)) == ("W204", {})
