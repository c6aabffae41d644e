"""What a run begins with, and what it refuses to begin with."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from resuming import train
from shares import gathered
from synthetic import tiny

import engine.starting
from engine.build import build
from engine.checkpoint.agreed import FailedOnRank, group_of_all, on_all
from engine.checkpoint.committed import checkpoints_in
from engine.errors import TitanError
from engine.events import event_file, read_new
from engine.parallel.mesh import process_group
from engine.planner.plan import plan
from engine.settled import read_settled
from engine.starting import agree, load_into

SAVING = {"training__steps": 7, "checkpoint__interval": 2, "checkpoint__keep_latest_k": 0}


def warnings(run: Path) -> list[str]:
    """What rank 0 warned of."""
    return [event["message"] for event in read_new(event_file(run, 0))[0] if event["kind"] == "warning"]


def test_a_run_that_is_complete_ends_at_once(tmp_path: Path) -> None:
    train(SAVING, str(tmp_path))
    again = train(SAVING, str(tmp_path))
    assert (again["last_step"], again["losses"], again["held"]) == (7, {}, None)
    assert again["reason"] == "completed before: all 7 steps are done, and the last one is saved"
    ended = again["events"][-1]
    assert (ended["kind"], ended["exit_code"]) == ("run_ended", 0)


def test_a_run_of_its_own_last_step_saves_it_once(tmp_path: Path) -> None:
    train(SAVING, str(tmp_path), ends_after=5)
    # Its data has ended for good: nothing is left to do, and step 5 is saved already.
    again = train(SAVING, str(tmp_path), ends_after=5)
    assert (again["last_step"], again["losses"]) == (5, {})
    assert [event["step"] for event in again["events"] if event["kind"] == "checkpoint"] == [2, 2, 4, 4, 5, 5]


def test_a_run_goes_back_to_a_step_and_keeps_what_it_leaves(tmp_path: Path) -> None:
    straight = train(SAVING, str(tmp_path))
    back = train(SAVING | {"checkpoint__load_step": 4}, str(tmp_path), ends_after=6)
    assert back["losses"] == {step: straight["losses"][step] for step in (5, 6)}
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [
        *("step-2", "step-4", "step-6", "step-6.aside-1", "step-7.aside-1"),
    ]
    assert "the run goes back to step 4, and its later checkpoints are kept as step-6.aside-1" in warnings(tmp_path)[0]


def test_a_run_that_went_back_goes_on_from_its_newest_when_it_is_started_again(tmp_path: Path) -> None:
    train(SAVING, str(tmp_path))
    train(SAVING | {"checkpoint__load_step": 4}, str(tmp_path), ends_after=6)
    assert read_settled(tmp_path) == {"checkpoint.load_step": -1}


def test_a_damaged_checkpoint_is_passed_over_and_kept(tmp_path: Path) -> None:
    straight = train(SAVING, str(tmp_path), ends_after=4)
    shard = tmp_path / "checkpoints" / "step-4" / "__0_0.distcp"
    os.truncate(shard, shard.stat().st_size // 2)
    again = train(SAVING, str(tmp_path))
    assert list(again["losses"]) == [3, 4, 5, 6, 7]
    assert again["losses"][4] == straight["losses"][4]
    assert any("step-4 is damaged: its file __0_0.distcp has" in message for message in warnings(tmp_path))
    assert "step-4.aside-1" in os.listdir(tmp_path / "checkpoints")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another depth": ({"model__shape__n_layers": 4}, "holds a model with n_layers = 2, and this run has 4"),
    "another precision": ({"training__dtype": "bfloat16"}, "holds weights in float32, and this run keeps them in bf"),
    "another optimizer": ({"optimizer__name": "SGD"}, "holds states of AdamW, and this run updates with SGD"),
    "a shorter run": ({"training__steps": 3}, "is after step 4, and training.steps is 3"),
    "a step that is not there": ({"checkpoint__load_step": 3}, "load_step = 3 is no committed checkpoint"),
    "tied embeddings": ({"model__shape__tie_embeddings": True}, "with tie_embeddings = False, and this run has True"),
}


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a run that was cut after step 4."""
    folder = tmp_path_factory.mktemp("cut")
    train(SAVING, str(folder), ends_after=4)
    return folder


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_of_another_run_is_refused_by_what_differs(row: str, cut: Path) -> None:
    values, message = REFUSED[row]
    with pytest.raises(TitanError) as caught:
        train(SAVING | values, str(cut))
    assert message in caught.value.findings[0].message
    assert checkpoints_in(cut / "checkpoints").committed == (2, 4)


def test_a_manifest_of_a_later_release_is_refused(tmp_path: Path) -> None:
    train(SAVING, str(tmp_path), ends_after=2)
    file = tmp_path / "checkpoints" / "step-2" / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 3}))
    with pytest.raises(TitanError, match="has schema 3, and this release reads 1 to 2"):
        train(SAVING, str(tmp_path))


def test_a_run_that_is_made_longer_goes_on_and_says_so(cut: Path, tmp_path: Path) -> None:
    shutil.copytree(cut, tmp_path / "run")
    again = train(SAVING | {"training__steps": 9}, str(tmp_path / "run"))
    assert list(again["losses"]) == [5, 6, 7, 8, 9]
    assert any("saved in a run of 7 steps, and training.steps is 9" in each for each in warnings(tmp_path / "run"))


def test_an_initial_checkpoint_gives_its_weights_and_no_more(cut: Path, tmp_path: Path) -> None:
    path = str(cut / "checkpoints")
    config = tiny(checkpoint__initial_load_path=path, optimizer__name="SGD")
    resolved = plan(config)
    device = torch.device("cpu")
    with process_group(device, world_size=1, deadline_s=60):
        beginning = agree(config, resolved, run=tmp_path)
        assert beginning.loading is not None
        assert beginning.group is not None
        assert (beginning.position.step, beginning.position.samples, beginning.resumed_from) == (0, 0, None)
        built = build(config, resolved, device)
        fresh = {name: gathered(weight).clone() for name, weight in built.weights.items()}
        load_into(built, beginning.loading, group=beginning.group)
        changed = [name for name, old in fresh.items() if not torch.equal(old, gathered(built.weights[name]))]
        assert sorted(changed) == sorted(built.weights)
        assert not any(built.optimizer.state.values())


def test_a_run_with_an_initial_checkpoint_begins_at_its_first_step(cut: Path, tmp_path: Path) -> None:
    found = train(SAVING | {"checkpoint__initial_load_path": str(cut / "checkpoints" / "step-4")}, str(tmp_path))
    assert list(found["losses"]) == [1, 2, 3, 4, 5, 6, 7]
    [started] = [event for event in found["events"] if event["kind"] == "run_started"]
    assert (started["resumed_from"], Path(started["loaded_from"]).name) == (None, "step-4")


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(TitanError, match="D636"):
        train(SAVING, str(tmp_path))


def other_folders(folder: str) -> str:
    """Ranks whose run folders are not one and the same; what is said."""
    engine.starting._SEEN_WITHIN_S = 0.3
    values = {"processes": 2, "parallelism__data_parallel_shard_degree": 2, **SAVING}
    try:
        train(values, str(Path(folder) / str(dist.get_rank())))
    except TitanError as mistake:
        return str(mistake)
    finally:
        engine.starting._SEEN_WITHIN_S = 10.0
    return "nothing"


@pytest.mark.world
def test_nodes_that_do_not_share_the_folder_are_told_before_the_first_step(gloo: GlooPool, tmp_path: Path) -> None:
    first, second = gloo.run(2, other_folders, folder=str(tmp_path))
    assert first == second
    assert first.startswith("error[D636]: rank 1 on ")
    assert not list(tmp_path.glob("*/checkpoints/*"))
    assert not list(tmp_path.glob("*/checkpoints/.*"))


def one_fails() -> str:
    """Rank 1 of two raises; what both say."""

    def work() -> int:
        if dist.get_rank() == 1:
            raise PermissionError(13, "Permission denied", "there")
        return 7

    try:
        on_all(group_of_all(30), "looking", work)
    except FailedOnRank as failure:
        return f"{failure.rank} {failure}"
    return "nothing"


@pytest.mark.world
def test_what_one_rank_cannot_do_is_raised_on_all(gloo: GlooPool) -> None:
    host = os.uname().nodename
    assert set(gloo.run(2, one_fails)) == {f"1 looking failed on rank 1 (host {host}): permission denied: there"}


# ---- the place in the data ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of about 70 sequences of 16 tokens, no two alike."""
    file = tmp_path_factory.mktemp("corpus") / "text.txt"
    file.write_text(" ".join(f"{number:x}" for number in range(300)))
    return file


def test_c31_a_run_goes_on_where_its_data_stood(corpus: Path, tmp_path: Path) -> None:
    given = SAVING | {"training__dataset": "text", "training__dataset_path": str(corpus), "training__steps": 6}
    straight = train(given, str(tmp_path), reads=True)
    back = train(given | {"checkpoint__load_step": 2}, str(tmp_path), reads=True)
    assert back["losses"] == {step: straight["losses"][step] for step in (3, 4, 5, 6)}


def test_c31_with_another_batch_no_sample_is_read_twice_or_left_out(corpus: Path, tmp_path: Path) -> None:
    given = SAVING | {"training__dataset": "text", "training__dataset_path": str(corpus), "data__repeat": False}
    long = {"training__steps": 100, "training__seq_len": 16}
    train(given | long | {"training__steps": 7}, str(tmp_path), reads=True)
    smaller = {"training__local_batch_size": 4, "training__global_batch_size": 4}
    found = train(given | long | smaller, str(tmp_path), reads=True)
    [_, summary] = [event["data"] for event in found["events"] if event["kind"] == "run_started"]
    # 7 steps of 8 sequences, and then all that is left of one pass, 4 by 4.
    assert found["last_step"] == 7 + (summary["samples_per_epoch"] - 7 * 8) // 4


def test_another_corpus_under_the_same_name_is_a_warning(corpus: Path, tmp_path: Path) -> None:
    given = SAVING | {"training__dataset": "text", "training__dataset_path": str(tmp_path / "text.txt")}
    (tmp_path / "text.txt").write_bytes(corpus.read_bytes())
    train(given | {"training__steps": 2}, str(tmp_path / "run"), reads=True)
    (tmp_path / "text.txt").write_bytes(corpus.read_bytes()[::-1])
    train(given | {"training__steps": 4}, str(tmp_path / "run"), reads=True)
    assert any("was saved over other data (crc32 was " in message for message in warnings(tmp_path / "run"))
