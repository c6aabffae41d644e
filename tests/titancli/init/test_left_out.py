"""What `titan plan --model` takes for what nobody gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.hardware import GIB, Machine
from engine.sources import Flag
from titancli.init import left_out
from titancli.init.left_out import completed
from titancli.init.wizard import Ask, Setting, answered, begin, step
from titancli.question import Asked

NO_GPU = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=4, memory_bytes=16 * GIB)
SHAPED = (Flag("model.flavor", "8B", "--model.flavor"),)


@pytest.fixture(autouse=True)
def on_a_machine_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "this_machine", lambda: NO_GPU)


@pytest.mark.parametrize("model", ["8B", "70B", "llama2 7B", "debugmodel"])
def test_it_is_what_init_proposes(model: str) -> None:
    setting = Setting(machine=NO_GPU, given={"model": model})
    state, proposed = begin(setting), dict[str, str]()
    while isinstance(asking := step(setting, state), Ask):
        proposed[asking.question.flag] = asking.default.value
        state = answered(setting, state, asking.default.value)
    assert completed(None, None, (), Asked(model=model))[1] == proposed


def test_what_is_given_stays() -> None:
    flags = (Flag("training.seq_len", "512", "--training.seq_len"),)
    asked, taken = completed(None, None, flags, Asked(model="8B", gpu="h200", nodes="2", goal="prototype"))
    assert taken == {"--gpus-per-node": "8"}
    assert (asked.gpu, asked.nodes, asked.seq_len, asked.goal) == ("h200", "2", None, "prototype")


def test_the_environment_gives_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TITAN_TRAINING__SEQ_LEN", "512")
    assert "--seq-len" not in completed(None, None, (), Asked(model="8B"))[1]


def test_a_preset_and_a_file_give_what_they_hold(tmp_path: Path) -> None:
    assert completed(None, "fsdp-8b", (), Asked(model="1B"))[1] == {"--goal": "production"}
    file = tmp_path / "run.toml"
    file.write_text("[training]\nseq_len = 512\n[cluster]\ngpu = 'h200'\nnodes = 1\n")
    assert completed(str(file), None, (), Asked(model="1B"))[1] == {"--gpus-per-node": "8", "--goal": "production"}


def test_a_config_whose_model_is_its_own_is_not_completed(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[model]\nflavor = '8B'\n")
    for path, flags in ((str(file), ()), (str(file), SHAPED), (None, ())):
        assert completed(path, None, flags, Asked()) == (Asked(), {})


def test_a_model_given_by_its_key_alone_is_completed() -> None:
    assert completed(None, None, SHAPED, Asked())[1]["--seq-len"] == "8192"


@pytest.mark.parametrize(
    "asked", [Asked(model="9B"), Asked(model="8B", seq_len="8M"), Asked(model="8B", nodes="x")], ids=str
)
def test_what_is_wrong_is_left_to_be_told(asked: Asked) -> None:
    assert completed(None, None, (), asked) == (asked, {})


def test_a_flavor_that_is_none_is_left_to_be_told() -> None:
    assert completed(None, None, (Flag("model.flavor", "9B", "--model.flavor"),), Asked()) == (Asked(), {})
