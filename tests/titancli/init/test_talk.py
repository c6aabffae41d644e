"""The way through the wizard on which nobody answers; the other one is test_terminal's."""

from __future__ import annotations

import pytest

from engine.errors import TitanError
from engine.hardware import GIB, Machine
from engine.sources import Flag
from titancli.init import wizard
from titancli.init.talk import decided, say_all
from titancli.init.wizard import Setting

MACHINE = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=4, memory_bytes=16 * GIB)
SMALL = {"model": "debugmodel", "gpu": "cpu", "gpus_per_node": "2", "seq_len": "128"}


def setting(key: str, value: str, **given: str) -> Setting:
    return Setting(machine=MACHINE, flags=(Flag(key, value, f"--{key}"),), given=given)


def test_every_default_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    of = setting("training.steps", "7", **SMALL)
    done, sayings = decided(of, wizard.begin(of))
    assert capsys.readouterr().out == ""
    say_all(sayings)
    told = capsys.readouterr().out
    assert "--goal prototype: small models and processors are for trying things" in told
    assert "--choice 1: the first of the list" in told
    assert done.plans.question.config.training.steps == 7


def test_a_warning_is_told_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    of = setting("lr_scheduler.warmup_steps", "2000", **SMALL)
    say_all(decided(of, wizard.begin(of))[1])
    assert capsys.readouterr().err.startswith("warning[L401]: ")


def test_an_error_that_nobodys_default_made_ends_it() -> None:
    of = setting("parallelism.tensor_parallel_degree", "16", gpu="h100-80", nodes="2", gpus_per_node="8")
    with pytest.raises(TitanError, match="P101"):
        decided(of, wizard.begin(of))
