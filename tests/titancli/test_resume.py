"""The checkpoint that a run would begin with, as validate tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.manifest import manifest_of
from engine.planner.plan import plan
from engine.sources import Flag, Loaded, load
from titancli.resume import look_at_start


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Loaded]:
    """The config of a run named x, with checkpoints, whose folder is in tmp_path; further keys with __ for the dot."""

    def build(**keys: str) -> Loaded:
        written = {"job.name": "x", "job.dump_folder": str(tmp_path), "checkpoint.enable": "true"}
        written |= {key.replace("__", "."): value for key, value in keys.items()}
        flags = [Flag(key, value, f"--{key}") for key, value in written.items()]
        return load(preset="quickstart", flags=flags, environ={})

    return build


def save(folder: Path, *, whole: bool = True, **keys: str) -> None:
    """A checkpoint of quickstart as the folder's name tells its step, or of a config with other keys."""
    flags = [Flag(key.replace("__", "."), value, f"--{key}") for key, value in keys.items()]
    config = load(preset="quickstart", flags=flags, environ={}).config
    step = int(folder.name.partition("-")[2] or 0)
    manifest = manifest_of(config, plan(config), step=step, samples=16 * step, updates=step, data={}, versions={})
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"shard")
    written = manifest.with_files({"__0_0.distcp": 5}).to_json()
    (folder / "manifest.json").write_text(json.dumps(written) if whole else "", "utf-8")


def rules(loaded: Loaded) -> list[tuple[str, str, str]]:
    return [(finding.rule, finding.severity, finding.key) for finding in look_at_start(loaded)[0]]


def test_c32_a_run_goes_on_from_its_newest_committed_step_with_a_warning(
    loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    save(tmp_path / "x" / "checkpoints" / "step-100")
    save(tmp_path / "x" / "checkpoints" / "step-200", whole=False)
    found, start = look_at_start(loaded())
    assert (start.step, start.path) == (100, tmp_path / "x" / "checkpoints" / "step-100")
    assert [(finding.rule, finding.severity) for finding in found] == [("D620", "warning")]
    assert "step-200" in found[0].message
    assert found[0].source == "flag --checkpoint.enable"


def test_c32_validate_refuses_a_step_that_is_not_committed(titan: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path / "runs" / "x" / "checkpoints" / "step-50")
    save(tmp_path / "runs" / "x" / "checkpoints" / "step-60", whole=False)
    keys = ("--job.name", "x", "--checkpoint.enable", "--checkpoint.load_step", "60")
    ran = titan("validate", "--preset", "quickstart", *keys)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(
        "error[D621]: load_step = 60 is no committed checkpoint of runs/x/checkpoints: step-60 has no"
    )
    assert "\n  fix: set it to 50, or to -1 for the newest\n" in ran.err


def test_validate_says_where_a_run_begins(titan: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path / "runs" / "x" / "checkpoints" / "step-50")
    words = ("validate", "--preset", "quickstart", "--job.name", "x", "--checkpoint.enable")
    assert "  begins        after step 50: runs/x/checkpoints/step-50\n" in titan(*words).out
    start = json.loads(titan(*words, "--json").out)["here"]["start"]
    assert start == {"step": 50, "path": "runs/x/checkpoints/step-50"}


def test_a_run_without_checkpoints_begins_at_its_first_step(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    found, start = look_at_start(loaded())
    assert (found, start.step, start.path) == ([], None, None)
    assert start.text == f"at its first step: no checkpoint in {tmp_path}/x/checkpoints"


def test_a_run_without_a_name_has_no_checkpoint_of_its_own(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "checkpoints" / "step-100")
    save(tmp_path / "x" / "checkpoints" / "step-100")
    assert look_at_start(loaded(job__name=""))[1].path is None


def test_a_step_of_a_folder_that_is_elsewhere_is_a_warning(loaded: Callable[..., Loaded]) -> None:
    assert rules(loaded(checkpoint__load_step="60")) == [("D623", "warning", "checkpoint.load_step")]


def test_an_initial_checkpoint_is_a_step_or_the_newest_of_a_folder(
    loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    for step in ("step-3", "step-20"):
        save(tmp_path / "old" / step)
    starts = [
        look_at_start(loaded(checkpoint__initial_load_path=str(tmp_path / "old" / step))) for step in ("step-3", "")
    ]
    assert [(found, start.path) for found, start in starts] == [
        ([], tmp_path / "old" / "step-3"),
        ([], tmp_path / "old" / "step-20"),
    ]
    assert starts[0][1].text == f"with the weights of {tmp_path}/old/step-3"


def test_a_checkpoint_of_its_own_goes_before_the_initial_one(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "old")
    save(tmp_path / "x" / "checkpoints" / "step-100")
    assert look_at_start(loaded(checkpoint__initial_load_path=str(tmp_path / "old")))[1].step == 100


def test_an_initial_checkpoint_that_is_elsewhere_is_a_warning(loaded: Callable[..., Loaded]) -> None:
    assert rules(loaded(checkpoint__initial_load_path="/cluster/only")) == [
        ("D623", "warning", "checkpoint.initial_load_path")
    ]


def test_what_is_not_here_is_missing_where_the_run_starts_here(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    lacks = [{"checkpoint__initial_load_path": str(tmp_path / "gone")}, {"checkpoint__load_step": "60"}]
    told = [look_at_start(loaded(**keys), starts_here=True)[0] for keys in lacks]
    assert [(finding.rule, finding.severity) for [finding] in told] == [("D624", "error"), ("D621", "error")]


def test_a_run_with_a_checkpoint_of_its_own_goes_on_whatever_became_of_the_initial_one(
    loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    save(tmp_path / "x" / "checkpoints" / "step-100")
    (tmp_path / "old").mkdir()
    assert rules(loaded(checkpoint__initial_load_path=str(tmp_path / "old"))) == []


def test_the_folder_of_a_run_is_no_checkpoint_and_the_fix_names_where_they_are(
    loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    save(tmp_path / "old" / "checkpoints" / "step-3")
    [finding] = look_at_start(loaded(checkpoint__initial_load_path=str(tmp_path / "old")))[0]
    assert (finding.rule, finding.fix) == ("D624", f"name the checkpoints of that run: {tmp_path / 'old/checkpoints'}")


def test_an_initial_checkpoint_that_is_torn_is_refused(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "old", whole=False)
    [finding] = look_at_start(loaded(checkpoint__initial_load_path=str(tmp_path / "old")))[0]
    assert (finding.rule, finding.severity) == ("D624", "error")
    assert "no whole manifest.json" in finding.message


def test_weights_of_hugging_face_are_taken_for_what_they_are(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").touch()
    path = {"checkpoint__initial_load_path": str(tmp_path / "hf")}
    [finding] = look_at_start(loaded(**path))[0]
    assert finding.fix == "set initial_load_in_hf to true"
    assert look_at_start(loaded(**path, checkpoint__initial_load_in_hf="true"))[0] == []


def test_a_folder_without_weights_is_no_hugging_face_model(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "old")
    keys = {"checkpoint__initial_load_path": str(tmp_path / "old"), "checkpoint__initial_load_in_hf": "true"}
    assert rules(loaded(**keys)) == [("D624", "error", "checkpoint.initial_load_path")]


OTHERS = {
    "training__dtype": ("bfloat16", "D632", "training.dtype"),
    "optimizer__name": ("Adam", "D632", "optimizer.name"),
    "model__shape__n_layers": ("4", "D632", "model.shape.n_layers"),
    "training__steps": ("50", "D633", "training.steps"),
}


@pytest.mark.parametrize("key", OTHERS)
def test_a_checkpoint_of_another_run_is_refused_by_what_differs(
    key: str, loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    save(tmp_path / "x" / "checkpoints" / "step-100")
    value, rule, at = OTHERS[key]
    asked = loaded(**{key: value})
    [found] = [each for each in look_at_start(asked, plan(asked.config))[0] if each.severity == "error"]
    assert (found.rule, found.key, found.source) == (rule, at, f"flag --{at}")
    assert value in found.message


def test_a_run_that_is_made_longer_goes_on_with_a_warning(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "x" / "checkpoints" / "step-100")
    asked = loaded(training__steps="300")
    found, start = look_at_start(asked, plan(asked.config))
    assert [(each.rule, each.severity) for each in found] == [("D634", "warning")]
    assert "run of 100 steps, and training.steps is 300" in found[0].message
    assert start.step == 100


def test_weights_of_a_run_with_another_optimizer_and_length_are_taken(
    loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    save(tmp_path / "old" / "step-100")
    given = {"checkpoint__initial_load_path": str(tmp_path / "old"), "optimizer__name": "SGD", "training__steps": "50"}
    asked = loaded(**given)
    assert look_at_start(asked, plan(asked.config))[0] == []


def test_the_newest_whole_checkpoint_is_gone_on_from(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    for step in (40, 60):
        save(tmp_path / "x" / "checkpoints" / f"step-{step}")
    (tmp_path / "x" / "checkpoints" / "step-60" / "__0_0.distcp").write_bytes(b"shar")
    found, start = look_at_start(loaded())
    assert [(each.rule, each.severity) for each in found] == [("D630", "warning")]
    assert "step-60 is damaged: its file __0_0.distcp has 4 bytes, and 5 were written" in found[0].message
    assert start.step == 40
    assert rules(loaded(checkpoint__load_step="60")) == [("D630", "error", "checkpoint.load_step")]


def test_a_run_does_not_begin_anew_beside_its_damaged_checkpoints(
    loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    save(tmp_path / "x" / "checkpoints" / "step-40")
    (tmp_path / "x" / "checkpoints" / "step-40" / "__0_0.distcp").unlink()
    [found] = look_at_start(loaded())[0]
    assert (found.rule, found.severity) == ("D630", "error")
    assert "its file __0_0.distcp is not there" in found.message


FAULTS = [
    ({"step": "50"}, "step is '50'"),
    ({"step": 40}, "is that of step 40"),
    ({"samples": -16}, "samples is -16"),
    ({"updates": None}, "updates is None"),
    ({"lr_horizon": {"steps": "9"}}, "lr_horizon.steps is '9'"),
    ({"lr_horizon": None}, "lr_horizon is None"),
    ({"model": []}, "model is []"),
    ({"files": None}, "files is None"),
    ({"files": {"__0_0.distcp": "5"}}, "its manifest says '5'"),
    ({"files": {"\0": 5}}, "cannot be looked at: embedded null byte"),
    ({"novelty": 1}, "novelty is not of schema 2"),
    ({"schema": True}, "has schema True"),
]


@pytest.mark.parametrize(("values", "message"), FAULTS)
def test_a_manifest_that_titan_never_wrote_is_refused_by_what_is_wrong(
    values: dict[str, Any], message: str, loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    save(folder := tmp_path / "x" / "checkpoints" / "step-50")
    written = json.loads((folder / "manifest.json").read_text("utf-8"))
    (folder / "manifest.json").write_text(json.dumps(written | values), "utf-8")
    config = loaded()
    [found], _ = look_at_start(config, plan(config.config))
    assert (found.severity, message in found.message) == ("error", True), found.message


def test_checkpoints_that_a_run_goes_back_behind_are_not_its_own_any_longer(
    loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    for step in (50, 60, 70):
        save(tmp_path / "x" / "checkpoints" / f"step-{step}")
    assert look_at_start(loaded(checkpoint__load_step="60"))[1].standing.committed == (50, 60)


# ---- under a URL -------------------------------------------------------------------------------


def test_c32_a_run_goes_on_from_a_url_with_a_warning(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "store" / "step-100")
    save(tmp_path / "store" / "step-200", whole=False)
    url = f"local://{tmp_path}/store"
    found, start = look_at_start(loaded(checkpoint__folder=url))
    assert (start.step, str(start.path)) == (100, f"{url}/step-100")
    assert [(finding.rule, finding.severity) for finding in found] == [("D620", "warning")]
    assert start.to_json() == {"step": 100, "path": f"{url}/step-100"}


@pytest.mark.parametrize(("starts_here", "severity"), [(True, "error"), (False, "warning")])
def test_a_url_that_cannot_be_reached_from_here_matters_where_the_run_starts(
    loaded: Callable[..., Loaded], starts_here: bool, severity: str
) -> None:
    [finding], start = look_at_start(loaded(checkpoint__folder="s4://bucket/run"), starts_here=starts_here)
    assert (finding.rule, finding.severity, finding.source) == ("D639", severity, "flag --checkpoint.folder")
    assert (start.is_reached, start.path) == (False, None)


def test_a_url_to_begin_from_is_looked_up(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "store" / "step-5")
    url = f"local://{tmp_path}/store"
    found, start = look_at_start(loaded(checkpoint__initial_load_path=url))
    assert (found, str(start.path), start.step) == ([], f"{url}/step-5", None)
    found, start = look_at_start(loaded(checkpoint__initial_load_path=f"{url}/nothing"))
    assert [(finding.rule, finding.severity) for finding in found] == [("D623", "warning")]
