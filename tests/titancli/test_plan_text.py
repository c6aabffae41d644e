"""How a plan looks."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from engine.calibration import Calibration, write
from engine.planner.stack import MEGATRON, TORCHTITAN
from engine.rules import Report, check
from engine.sources import Flag, load
from titancli.plan_text import label_width, say_plan


def checked(preset: str, **flags: str) -> Report:
    """A preset with keys replaced (`__` for the dot)."""
    keys = {key.replace("__", "."): value for key, value in flags.items()}
    return check(load(preset=preset, flags=[Flag(key, value, f"--{key}") for key, value in keys.items()], environ={}))


def said(report: Report) -> str:
    stream = io.StringIO()
    say_plan(report, stream)
    return stream.getvalue()


class _Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plan_fits_60_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Screen()
    say_plan(checked("3d-405b"), stream)
    # A dotted key, behind its state, is never cut.
    too_long = [line for line in stream.getvalue().splitlines() if len(line) > 60]
    assert [line for line in too_long if len(line.split()) > 2] == []


def test_one_of_a_thing_is_not_told_as_many() -> None:
    alone = {"cluster__gpus_per_node": "1", "parallelism__data_parallel_shard_degree": "1"}
    one = checked("quickstart", training__local_batch_size="1", **alone)
    assert "1 sequence a step = 1 a data rank x 1 data rank x 1 accumulation\n" in said(one)


def test_small_model_has_its_memory_in_mib_and_no_zeros() -> None:
    text = said(checked("quickstart"))
    assert "memory of one rank, in MiB" in text
    assert "0.00" not in text


def test_parts_of_the_memory_are_said_not_to_add_up_to_the_peak() -> None:
    assert "activ., logits, buffers: each at its most; peak: the fullest moment" in " ".join(
        said(checked("fsdp-8b")).split()
    )


def test_many_equal_pipeline_ranks_share_a_row() -> None:
    report = checked(
        "3d-405b",
        cluster__nodes="126",
        cluster__gpus_per_node="8",
        parallelism__pipeline_parallel_degree="126",
        parallelism__data_parallel_shard_degree="1",
        parallelism__pipeline_parallel_schedule="GPipe",
        training__local_batch_size="4",
    )
    rows = [line.split() for line in said(report).splitlines() if " each" in line and "-" in line]
    assert [row[0] for row in rows] == ["1-124"]


def test_layout_that_does_not_fit_says_when_where_and_what_would() -> None:
    text = said(checked("3d-405b", activation_checkpoint__mode="none"))
    fit = " ".join(text.partition("\nfit\n")[2].partition("\nsettings\n")[0].split())
    assert re.match(
        r"does not fit: pipeline rank \d uses \d+ GiB of 95\.0 GiB \(\d+ %\) at its fullest \([a-z ]+\)", fit
    )
    assert re.search(r"that leave room: activation_checkpoint\.mode = full: \d+ % full, [\d.]+ % slower", fit)


def test_layout_with_room_is_told_to_fit_and_offered_nothing() -> None:
    text = said(checked("fsdp-8b", cluster__gpu="h200"))
    assert "  fits: every rank uses " in text
    assert "nearest changes" not in text


def test_speed_says_where_the_time_goes() -> None:
    lines = said(checked("3d-405b")).partition("\nspeed\n")[2].partition("\n\n")[0].splitlines()
    text = " ".join(" ".join(lines).split())
    for name in ("step time", "tokens/s/GPU", "MFU", "communication", "rates", "compute", "recompute", "bubble"):
        assert f"{name} " in text
    assert re.search(r"communication .*tp [\d.]+ m?s \(\d+ % hidden\)", text)
    shares = [float(line.split()[-2]) for line in lines if line.endswith(" %")]
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_speed_of_a_cpu_is_not_known_and_says_how_to_measure_it() -> None:
    text = " ".join(said(checked("quickstart")).split())
    assert "step time n/a (what this machine reaches is not measured; titan doctor --measure does it)" in text


def test_other_engine_is_named() -> None:
    report = check(load(preset="fsdp-8b", environ={}), stack=TORCHTITAN)
    assert "  engine        torchtitan" in said(report)
    assert "settings" not in said(report)


def test_rates_that_were_measured_are_named(tmp_path: Path) -> None:
    path = tmp_path / "measured.toml"
    about = {"gpu": "h100-96", "gpu_name": "NVIDIA H100", "host": "here", "date": "2026-01-01"}
    write(Calibration(**about, versions={}, sustained={"bf16_tflops": 600.0}), path)
    report = checked("fsdp-8b", cluster__calibration=str(path))
    assert f"rates measured: {path}" in " ".join(said(report).split())
    assert "  rates         what such GPUs usually sustain" in said(checked("fsdp-8b"))


def test_a_short_step_is_told_in_milliseconds() -> None:
    found = checked("quickstart", cluster__gpu="h100-80", cluster__gpus_per_node="2")
    assert found.plan is not None
    assert found.plan.time.step_s is not None
    assert f"step time     {1000 * found.plan.time.step_s:.1f} ms" in said(found)


def test_what_megatron_shards_is_not_called_fsdp() -> None:
    loaded = load(preset="2d-70b", environ={})
    assert "exposed: FSDP" in said(check(loaded))
    text = said(check(loaded, stack=MEGATRON))
    assert "exposed: ZeRO-1" in text
    assert "FSDP" not in text


def test_the_verdict_is_one_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Screen()
    say_plan(checked("fsdp-8b", training__local_batch_size="8"), stream)
    lines = stream.getvalue().partition("\nfit\n")[2].splitlines()
    first = lines[: next(place for place, line in enumerate(lines) if line.startswith("  nearest"))]
    assert first[0].startswith("  does not fit: every rank uses ")
    assert all(50 <= len(line) <= 60 for line in first[:-1])


def test_names_of_rows_are_never_run_into_their_words() -> None:
    assert label_width([("mesh", "")]) == 14
    assert label_width([("mesh", ""), ("tokens/s/process", "")]) == 17


def test_of_a_setting_that_a_finding_is_about_only_its_id_is_told() -> None:
    checked = check(load(preset="fsdp-8b", flags=[Flag("training.local_batch_size", "8", "")], environ={}))
    printed = io.StringIO()
    say_plan(checked, printed)
    rejected = [line.split() for line in printed.getvalue().splitlines() if line.startswith("  rejected ")]
    assert rejected == [["rejected", "parallelism.data_parallel_shard_degree:", "M501"]]


def test_copies_of_weights_are_told_where_a_rank_holds_any() -> None:
    alone = {"cluster__gpus_per_node": "1", "parallelism__data_parallel_shard_degree": "1"}
    single, mixed = (
        " ".join(said(checked("quickstart", training__mixed_precision_param=dtype, **alone)).split())
        for dtype in ("float32", "bfloat16")
    )
    assert "their copies to compute with" in mixed
    assert "their copies to compute with" not in single
