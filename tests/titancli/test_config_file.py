"""Config files as titan writes them."""

from __future__ import annotations

import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from engine.config import Config
from engine.hardware import GPUS
from engine.keys import field_types, value_of, with_values
from engine.planner.search import Found, Question, search
from engine.rules import check
from engine.rules.layouts import refusal
from engine.schema import json_schema, schema_text
from engine.sources import load
from titancli.config_file import SCHEMA_LINE, commented, config_text, next_steps, say_written, schema_line, write_config
from titancli.question import Asked, question_of

BARE = re.compile(r"# (\w+ = .+)")


@cache
def asked(model: str = "8B", **more: str) -> tuple[Question, Found]:
    question = question_of(None, None, (), Asked(model=model, **({"gpu": "h100-80", "gpus_per_node": "2"} | more)))
    return question, search(question, refusal=refusal)


def loaded(text: str, folder: Path) -> Any:
    file = folder / "run.toml"
    file.write_text(text, "utf-8")
    return load(file, environ={})


@pytest.mark.parametrize("more", [{}, {"goal": "prototype", "seq_len": "512"}, {"goal": "max-performance"}])
def test_each_candidate_loads_back_to_what_was_planned(more: dict[str, str], tmp_path: Path) -> None:
    question, found = asked(**more)
    for candidate in found.candidates:
        text = config_text(question, candidate, schema=SCHEMA_LINE)
        assert list(Draft7Validator(json_schema()).iter_errors(tomllib.loads(text))) == []
        back = loaded(text, tmp_path)
        assert back.findings == ()
        assert {key: value_of(back.config, key) for key in candidate.values} == {
            key: tuple(value) if isinstance(value, list) else value for key, value in candidate.values.items()
        }
        checked = check(back)
        assert checked.ok
        assert checked.plan == candidate.plan


def test_the_schema_is_named_in_the_first_line_or_not_at_all() -> None:
    question, found = asked()
    assert config_text(question, found.candidates[0], schema=SCHEMA_LINE).startswith("#:schema ./titan.schema.json\n")
    assert "#:schema" not in config_text(question, found.candidates[0], schema=None)


def test_sections_stand_in_the_order_of_the_config() -> None:
    question, found = asked()
    sections = re.findall(r"^\[(.+)\]$", config_text(question, found.candidates[0], schema=None), re.MULTILINE)
    order = list(dict.fromkeys(key.rpartition(".")[0] for key in field_types()))
    assert sections == [section for section in order if section in sections]


def test_its_head_tells_the_question_the_plan_and_the_reason() -> None:
    question, found = asked()
    winner = found.candidates[0]
    head = config_text(question, winner, schema=None).partition("[cluster]")[0]
    assert head.startswith("# llama3 8B on 2 x h100-80, sequences of 2,048 tokens, for production\n")
    for words in ("mesh", f"{winner.plan.tokens_per_step:,}", " on the fullest rank", "tokens/s/GPU"):
        assert words in head
    assert winner.reason in " ".join(head.replace("#", "").split())


def test_no_line_of_it_is_wider_than_100() -> None:
    question, found = asked()
    assert max(map(len, config_text(question, found.candidates[0], schema=None).splitlines())) <= 100


def test_what_its_comments_offer_works_once_switched_on(tmp_path: Path) -> None:
    question, found = asked()
    text = BARE.sub(r"\1", config_text(question, found.candidates[0], schema=None))
    back = loaded(text, tmp_path)
    assert back.findings == ()
    training, data = back.config.training, back.config.data
    assert (training.dataset, training.dataset_path, data.tokenizer) == ("jsonl", "data/train.jsonl", "tokenizer.json")


def test_hardware_that_was_found_is_written_unless_auto_was_asked_for() -> None:
    question, found = asked(gpus_per_node="auto")
    text = config_text(question, found.candidates[0], schema=None)
    assert tomllib.loads(text)["cluster"]["gpus_per_node"] == GPUS["h100-80"].usual_gpus_per_node
    kept = config_text(question, found.candidates[0], schema=None, keeps_auto=frozenset({"cluster.gpus_per_node"}))
    assert tomllib.loads(kept)["cluster"]["gpus_per_node"] == "auto"


def test_every_key_can_be_written_and_text_of_any_kind(tmp_path: Path) -> None:
    words = 'a "b" \\ \x7f\n\té \U0001f600 #'
    config = with_values(
        Config(),
        {"job.description": words, "data.mixture": {words: 0.5, "b.jsonl": 1e-9}, "launch.slurm.extra": [words, ""]},
    )
    values = {key: value for key in field_types() if (value := value_of(config, key)) is not None}
    back = loaded(commented(values, ["line\x1b[0m"], schema=None), tmp_path)
    assert back.findings == ()
    assert back.config == config


def test_a_config_brings_its_schema_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, file, schema = f"#:schema {SCHEMA_LINE}\n", str(tmp_path / "run.toml"), tmp_path / "titan.schema.json"
    written = write_config(file, text, force=False)
    assert [each.path for each in written] == [file, str(schema)]
    assert schema.read_text("utf-8") == schema_text()
    say_written(written)
    assert capsys.readouterr().out == f"written: {file}\nwritten: {schema}\n"
    assert [each.path for each in write_config(file, text, force=True)] == [file]
    assert [each.path for each in write_config(str(tmp_path / "plain.toml"), "", force=False)] == [
        str(tmp_path / "plain.toml")
    ]


def test_a_schema_of_another_version_is_replaced_and_kept(tmp_path: Path) -> None:
    schema = tmp_path / "titan.schema.json"
    schema.write_text("{}")
    written = write_config(str(tmp_path / "run.toml"), f"#:schema {SCHEMA_LINE}\n", force=False)
    assert written[1].kept == f"{schema}.old"


def test_a_schema_that_cannot_be_written_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "titan.schema.json").mkdir()
    written = write_config(str(tmp_path / "run.toml"), f"#:schema {SCHEMA_LINE}\n", force=False)
    assert [each.path for each in written] == [str(tmp_path / "run.toml")]
    assert capsys.readouterr().err.startswith("warning[U125]: cannot write ")


def test_a_pipe_is_given_no_schema_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert (schema_line(str(tmp_path / "pipe")), schema_line("run.toml")) == (None, SCHEMA_LINE)


def test_a_name_that_begins_with_a_dash_is_no_flag_of_the_next_command() -> None:
    assert next_steps("-x.toml") == "next: titan validate ./-x.toml, then titan launch ./-x.toml"


def test_several_nodes_are_launched_by_a_scheduler() -> None:
    assert next_steps("x.toml", nodes=16).endswith(", then titan launch x.toml --scheduler slurm (or kubernetes)")
