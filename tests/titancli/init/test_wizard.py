"""The conversation, reply by reply, without a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import TitanError
from engine.hardware import GIB, Machine
from engine.sources import Flag
from titancli.init import wizard
from titancli.init.judging import Doubt
from titancli.init.plans import plans_of
from titancli.init.wizard import Ask, Done, Search, Setting, State, Stuck

MACHINE = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=4, memory_bytes=16 * GIB)
SMALL = {"model": "debugmodel", "gpu": "cpu", "gpus_per_node": "2", "seq_len": "128", "goal": "prototype"}


def setting(*flags: tuple[str, str], preset: str | None = None, **given: str) -> Setting:
    dotted = tuple(Flag(key, value, f"--{key}") for key, value in flags)
    return Setting(machine=MACHINE, preset=preset, flags=dotted, given=given)


def ask(of: Setting, state: State) -> Ask:
    asked = wizard.step(of, state)
    assert isinstance(asked, Ask)
    return asked


def replied(of: Setting, *words: str) -> State:
    state = wizard.begin(of)
    for word in words:
        state = wizard.answered(of, state, word or ask(of, state).default.value)
    return state


def searched(of: Setting, state: State) -> State:
    wanted = wizard.step(of, state)
    assert isinstance(wanted, Search)
    plans = plans_of(wanted.loaded, wanted.goal, fixed=wanted.fixed, preset=of.preset, asked_goal=False, top=5)
    return wizard.with_plans(of, state, plans)


def asked_keys(of: Setting) -> list[str]:
    """The questions of a conversation in which every default is taken."""
    state, keys = wizard.begin(of), []
    while isinstance(at := wizard.step(of, state), Ask):
        keys.append(at.question.key)
        state = wizard.answered(of, state, at.default.value)
    return keys


def test_with_nothing_given_six_questions_come_before_the_plans() -> None:
    assert asked_keys(setting()) == ["model", "gpu", "nodes", "gpus_per_node", "seq_len", "goal"]


def test_every_default_has_a_reason() -> None:
    of = setting()
    state = wizard.begin(of)
    while isinstance(at := wizard.step(of, state), Ask):
        assert at.default.reason
        assert at.default.value in [choice.value for choice in at.choices]
        state = wizard.answered(of, state, at.default.value)


@pytest.mark.parametrize("key", ["model", "gpu", "nodes", "gpus_per_node", "seq_len", "goal"])
def test_a_question_whose_flag_is_given_is_not_asked(key: str) -> None:
    words = {"model": "8B", "gpu": "h200", "nodes": "1", "gpus_per_node": "8", "seq_len": "8192", "goal": "production"}
    assert key not in asked_keys(setting(**{key: words[key]}))


def test_a_dotted_flag_answers_its_question_too() -> None:
    assert asked_keys(setting(("training.seq_len", "4096"), ("model.flavor", "8B"))) == [
        "gpu",
        "nodes",
        "gpus_per_node",
        "goal",
    ]


def test_of_a_preset_only_the_goal_is_asked() -> None:
    assert asked_keys(setting(preset="3d-405b")) == ["goal"]


def test_how_many_machines_is_not_asked_of_processors() -> None:
    assert "nodes" not in asked_keys(setting(gpu="cpu"))


def test_a_family_that_is_given_leaves_its_own_models() -> None:
    asked = ask(of := setting(("model.name", "qwen3")), wizard.begin(of))
    assert {choice.value.split()[0] for choice in asked.choices} == {"qwen3"}


def test_an_answer_is_kept_as_the_list_has_it() -> None:
    assert replied(setting(), "70b").answers == {"model": "llama3 70B"}


def test_what_is_no_answer_is_asked_again_with_what_is_wrong() -> None:
    of = setting()
    state = replied(of, "9B")
    assert [finding.rule for finding in state.refused] == ["U121"]
    assert ask(of, state).question.key == "model"
    assert wizard.answered(of, state, "8B").refused == ()


@pytest.mark.parametrize("word", ["0", "-1", "many", "1.5"])
def test_a_number_of_machines_is_one_or_more(word: str) -> None:
    state = replied(setting(), "8B", "h100-80", word)
    assert [finding.rule for finding in state.refused] == ["S102"]


def test_thousands_may_have_commas() -> None:
    of = setting(**{key: word for key, word in SMALL.items() if key != "seq_len"})
    assert wizard.known_of(of, replied(of, "16,384")).config.training.seq_len == 16_384


def test_back_asks_the_question_before_and_proposes_what_was_answered() -> None:
    of = setting()
    asked = ask(of, wizard.went_back(replied(of, "70B", "h200")))
    assert (asked.question.key, asked.default.value) == ("gpu", "h200")
    first = ask(of, wizard.went_back(wizard.went_back(replied(of, "70B", "h200"))))
    assert (first.question.key, first.default.value) == ("model", "llama3 70B")


def test_what_was_only_proposed_is_proposed_anew_for_another_answer_before() -> None:
    of = setting()
    state = replied(of, "405B", "h200", "")
    assert state.answers["nodes"] == "16"
    for _ in range(3):
        state = wizard.went_back(state)
    for word in ("debugmodel", ""):
        state = wizard.answered(of, state, word or ask(of, state).default.value)
    asked = ask(of, state)
    assert (state.answers["gpu"], asked.question.key, asked.default.value) == ("h200", "nodes", "1")


def test_before_the_first_question_there_is_nothing() -> None:
    state = wizard.begin(setting())
    assert wizard.went_back(state) is state


def test_back_from_the_plans_leads_to_the_goal() -> None:
    of = setting(**{key: word for key, word in SMALL.items() if key != "goal"})
    state = searched(of, replied(of, "prototype"))
    assert ask(of, state).question.key == "choice"
    assert ask(of, wizard.went_back(state)).question.key == "goal"


def test_a_choice_ends_it() -> None:
    of = setting(**SMALL)
    done = wizard.step(of, wizard.answered(of, searched(of, wizard.begin(of)), "2"))
    assert isinstance(done, Done)
    assert (done.choice, done.plans.candidate("2").plan.world_size) == ("2", 2)


def test_a_plan_that_is_not_listed_is_refused_with_those_that_are() -> None:
    of = setting(**SMALL)
    state = wizard.answered(of, searched(of, wizard.begin(of)), "9")
    assert (state.refused[0].rule, state.refused[0].fix) == ("U131", "write 1 to 5")
    given = setting(**SMALL, choice="49")
    with pytest.raises(TitanError, match="U131"):
        searched(given, wizard.begin(given))


@pytest.mark.parametrize(("word", "answer"), [("8k", "8192"), ("24K", "24576"), ("10,000", "10000")])
def test_a_length_is_kept_as_the_number_it_is(word: str, answer: str) -> None:
    assert replied(setting(**LARGE), word).answers["seq_len"] == answer


def test_a_length_with_another_suffix_is_asked_again() -> None:
    assert [finding.rule for finding in replied(setting(**LARGE), "8M").refused] == ["U126"]


# ── rules ──


def doubt(of: Setting, state: State) -> Doubt:
    found = wizard.step(of, state)
    assert isinstance(found, Doubt)
    return found


CUT = (("parallelism.context_parallel_degree", "2"), ("parallelism.tensor_parallel_degree", "4"))
LARGE = {"model": "8B", "gpu": "h100-80", "nodes": "1", "gpus_per_node": "8", "goal": "production"}


def test_an_answer_that_breaks_a_rule_is_told_with_its_fix() -> None:
    of = setting(*CUT, **LARGE)
    found = doubt(of, replied(of, "8100"))
    assert (found.finding.rule, found.is_error, found.edit) == ("P110", True, {"training.seq_len": 8104})


def test_the_fix_is_taken_and_the_question_stays_answered() -> None:
    of = setting(*CUT, **LARGE)
    state = wizard.mended(of, replied(of, "8100"), {"training.seq_len": 8104})
    wanted = wizard.step(of, state)
    assert isinstance(wanted, Search)
    assert wanted.loaded.config.training.seq_len == 8104


def test_another_answer_undoes_a_fix() -> None:
    of = setting(*CUT, **LARGE)
    state = wizard.mended(of, replied(of, "8100"), {"training.seq_len": 8104})
    again = wizard.answered(of, wizard.went_back(state), "16384")
    assert wizard.known_of(of, again).config.training.seq_len == 16_384


def test_a_rule_waits_for_the_answers_that_it_reads() -> None:
    of = setting(("parallelism.tensor_parallel_degree", "16"), ("parallelism.data_parallel_shard_degree", "3"))
    assert doubt(of, replied(of, "8B")).finding.rule == "P101"


def test_what_the_command_line_alone_breaks_is_told_before_any_question() -> None:
    with pytest.raises(TitanError, match="P101"):
        wizard.begin(setting(("parallelism.tensor_parallel_degree", "16"), **LARGE))


def test_a_warning_can_be_kept_and_an_error_cannot() -> None:
    of = setting(("cluster.memory_gib", "500"))
    state = replied(of, "8B", "h100-80", "1", "8")
    assert doubt(of, state).finding.rule == "C808"
    assert ask(of, wizard.kept(state)).question.key == "seq_len"
    wrong = setting(*CUT, **LARGE)
    with pytest.raises(AssertionError):
        wizard.kept(replied(wrong, "8100"))


def test_all_that_is_wrong_with_the_command_line_is_told_at_once() -> None:
    with pytest.raises(TitanError) as wrong:
        wizard.begin(setting(("training.steps", "x"), model="9B", goal="fame", nodes="0", choice="first"))
    assert [finding.rule for finding in wrong.value.findings] == ["U121", "U122", "U131", "S102", "S102"]


# ── where nothing fits ──


def stuck(of: Setting, state: State) -> tuple[State, Any]:
    wanted = wizard.step(of, state)
    assert isinstance(wanted, Search)
    plans = plans_of(wanted.loaded, wanted.goal, fixed=wanted.fixed, preset=None, asked_goal=False, top=5)
    assert plans.words == ()
    return wizard.with_nothing(state, Stuck(findings=(), question=plans.question)), plans


def test_a_way_out_leads_to_plans() -> None:
    of = setting(model="70B", gpu="h100-80", nodes="1", gpus_per_node="2")
    state, _ = stuck(of, replied(of, "2048", "prototype"))
    assert isinstance(wizard.step(of, state), Stuck)
    freed = wizard.mended(of, state, {"cluster.nodes": 2, "cluster.gpus_per_node": 8})
    assert searched(of, freed).plans


def test_from_where_nothing_fits_any_question_can_be_gone_back_to() -> None:
    of = setting(nodes="1", gpus_per_node="1")
    state, _ = stuck(of, replied(of, "70B", "h100-80", "2048", "prototype"))
    assert [question.key for question in wizard.asked_before(state)] == ["goal", "seq_len", "gpu", "model"]
    asked = ask(of, wizard.went_to(of, state, "model"))
    assert (asked.question.key, asked.default.value) == ("model", "llama3 70B")


# ── presets ──


def test_the_layout_of_a_preset_is_proposed_where_it_fits() -> None:
    of = setting(preset="quickstart")
    asked = ask(of, searched(of, replied(of, "prototype")))
    assert asked.default.value == "preset"
    assert asked.choices[-1].value == "preset"


def test_flags_that_a_presets_layout_does_not_go_with_leave_the_best() -> None:
    of = setting(preset="quickstart", gpus_per_node="4")
    assert ask(of, searched(of, replied(of, "prototype"))).default.value == "1"


def test_a_named_model_is_that_model_and_not_the_presets_numbers() -> None:
    of = setting(preset="quickstart", model="1B")
    config = wizard.known_of(of, wizard.begin(of)).config
    assert (config.model.flavor, config.model.shape.dim) == ("1B", None)


def test_a_state_is_not_changed_by_what_comes_after() -> None:
    of = setting()
    state = replied(of, "8B")
    before = replace(state)
    wizard.answered(of, state, "h200")
    assert state == before
