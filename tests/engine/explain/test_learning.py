"""Learning rate, optimizer and names."""

from __future__ import annotations

from typing import Any

from engine.config import Config
from engine.explain import rates
from engine.keys import with_values

C27 = {"training.steps": 10, "lr_scheduler.warmup_steps": 2, "optimizer.lr": 1.0}
WARMUP, RATIO = "lr_scheduler.warmup_steps", "lr_scheduler.decay_ratio"


def figures(found: Any) -> dict[str, Any]:
    return {figure.name: figure.value for figure in found.figures}


def test_c27_rates_of_the_first_the_warmup_the_middle_and_the_last_step() -> None:
    assert rates(with_values(Config(), C27)) == ((1, 0.5), (2, 1.0), (5, 0.75), (10, 0.125))


def test_c27_without_warmup_and_decay_the_rate_is_the_peak() -> None:
    config = with_values(Config(), {"training.steps": 10, "optimizer.lr": 1.0, RATIO: 0.0})
    assert rates(config) == ((1, 1.0), (5, 1.0), (10, 1.0))


def test_c27_a_run_of_one_step_has_one_rate() -> None:
    assert rates(with_values(Config(), {"training.steps": 1, "optimizer.lr": 1.0})) == ((1, 1.0),)


def test_c27_the_rates_stand_at_the_learning_rate(explain: Any) -> None:
    assert figures(explain(C27)["optimizer.lr"]) == {
        "rate of step 1": 0.5,
        "rate of step 2": 1.0,
        "rate of step 5": 0.75,
        "rate of step 10": 0.125,
    }


def test_c27_a_warmup_longer_than_the_run_is_told_as_cut(explain: Any) -> None:
    found = explain(C27 | {WARMUP: 12})[WARMUP]
    assert (found.derived.value, found.derived.formula) == (10, "cut from 12 to the 10 steps of the run")
    assert "training.steps to 12" in found.change


def test_c27_a_decay_that_warmup_leaves_no_room_for_is_told_as_cut(explain: Any) -> None:
    found = explain(C27 | {RATIO: 0.9})[RATIO]
    assert (found.derived.value, found.derived.formula) == (0.8, "cut from 9 to the 8 steps that warmup leaves")


def test_a_decay_left_out_is_all_after_warmup(explain: Any) -> None:
    found = explain(C27)[RATIO]
    assert (found.derived.value, found.derived.formula) == (0.8, "(10 steps - 2 warmup) / 10 = 0.8")
    assert found.figures[0].formula == "steps 3 to 10"


def test_c48_fsdp_over_eight_holds_15_gib_half_of_it_from_the_first_update_on(preset: Any) -> None:
    found = preset("fsdp-8b")
    assert figures(found["training.dtype"]) == {"held all the time by the fullest rank, GiB": 14.96}
    assert figures(found["optimizer.name"]) == {"optimizer states of a rank, GiB": 7.48}
    assert "there from the first update on" in found["optimizer.name"].figures[0].formula


def test_the_precision_of_what_is_kept_is_held_against_the_other(preset: Any) -> None:
    found = preset("fsdp-8b")["training.dtype"]
    assert found.cost.text.startswith("against bfloat16: that would be -")
    assert found.cost.bytes > 0
    assert "less precise" in found.change


def test_an_optimizer_without_states_says_so(explain: Any) -> None:
    found = explain({"optimizer.name": "SGD"})["optimizer.name"].cost
    assert found.bytes == 0
    assert found.text.startswith("SGD keeps no state")


def test_clipping_costs_a_pass_over_the_gradients(preset: Any, explain: Any) -> None:
    assert preset("3d-405b")["training.max_norm"].cost.ms > 0
    assert explain({"training.max_norm": 0.0})["training.max_norm"].cost.text == "off: nothing"


def test_a_run_without_a_name_is_called_after_its_preset(preset: Any) -> None:
    assert preset("fsdp-8b")["job.name"].derived.value == "fsdp-8b-YYYYMMDD-HHMMSS"


def test_a_tokenizer_left_out_is_that_of_the_assets_or_bytes(explain: Any) -> None:
    assert explain({})["data.tokenizer"].derived.value == "bytes"
    assert explain({"model.hf_assets_path": "assets"})["data.tokenizer"].derived.value == "assets"
