"""The batch script of Slurm: what is in it, and that it runs. Slurm's own commands are stood in for by small ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.planner.plan import plan
from engine.sources import Flag, load
from titancli.launch.slurm import options, script

SLURM = ("launch", "--preset", "quickstart", "--scheduler", "slurm", "--name", "x")
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do [[ "$1" == --output=* ]] && out="${1#--output=}"; shift; done
exec "$@" >"$out" 2>&1
"""
INSIDE = {"SLURM_NNODES": "1", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "2"}


def config(**values: str) -> Any:
    """A config of eight H100 on each of two nodes, with dotted keys set: `launch__slurm__time`."""
    base = {"cluster__gpu": "h100-80", "cluster__nodes": "2", "launch__scheduler": "slurm"}
    flags = [Flag(key.replace("__", "."), value, "") for key, value in (base | values).items()]
    loaded = load(flags=flags, environ={})
    assert loaded.findings == ()
    return loaded.config


def asked(run: str = "runs/x", **values: str) -> list[str]:
    made = config(**values)
    return options(Path(run), made, plan(made))


def commands(folder: Path, **scripts: str) -> str:
    """A PATH on which Slurm's commands are these."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def run_script(path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        ["bash", str(path)], env=kept | environ, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_job_has_one_task_a_node_and_all_of_a_node_whose_gpus_it_takes() -> None:
    assert asked()[:6] == [
        "--job-name=x",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--exclusive",
        "--mem=0",
    ]


def test_a_part_of_a_node_leaves_the_rest_to_others() -> None:
    assert asked(cluster__gpus_per_node="2")[3:5] == ["--gpus-per-node=2", "--cpus-per-task=16"]


@pytest.mark.parametrize("key", ["partition", "account", "time", "qos"])
def test_every_key_of_slurm_is_an_option(key: str) -> None:
    assert f"--{key}=2-00" in asked(**{f"launch__slurm__{key}": "2-00"})


def test_the_grace_is_what_slurm_gives_before_the_time_limit() -> None:
    assert "--signal=TERM@91" in asked(launch__grace_seconds="90.5")


@pytest.mark.parametrize(
    ("extra", "gone"),
    [
        ("--gres=gpu:h100:8", "--gpus-per-node=8"),
        ("-G 16", "--gpus-per-node=8"),
        ("--mem-per-gpu=64G", "--mem=0"),
        ("--no-requeue", "--requeue"),
        ("-J other", "--job-name=x"),
        ("-o here.log", "--output"),
        ("-D /scratch", "--chdir"),
    ],
)
def test_an_extra_option_stands_for_the_one_that_says_the_same(extra: str, gone: str) -> None:
    made = asked(launch__slurm__extra=extra)
    assert (made[-1], [option for option in made if option.startswith(gone)]) == (extra, [])


def test_output_goes_into_the_run_folder_whatever_its_name() -> None:
    assert asked("/a b/it's/x")[-1] == """--output='/a b/it'"'"'s/x/logs/slurm.log'"""


@pytest.mark.parametrize("cwd", ["50%j", "a\\b", "a\n#SBATCH --nodes=9"])
def test_a_folder_that_slurm_would_read_as_another_is_refused(
    titan: Callable[..., Any], tmp_path: Path, cwd: str
) -> None:
    (tmp_path / cwd).mkdir()
    ran = titan(*SLURM, "--dry-run", cwd=tmp_path / cwd)
    assert (ran.code, "error[U195]: Slurm's options cannot carry the path" in ran.err, ran.out) == (2, True, "")


def test_dry_run_prints_the_script_alone_and_writes_nothing(titan: Callable[..., Any], tmp_path: Path) -> None:
    ran = titan(*SLURM, "--dry-run")
    command = f"sbatch --parsable {tmp_path}/runs/x/job.sbatch"
    assert (ran.code, ran.out.startswith("#!/bin/bash\n"), ran.err.endswith(f"{command}\n")) == (0, True, True)
    assert subprocess.run(["bash", "-n"], input=ran.out, text=True, check=False).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_variables_that_sbatch_heeds_before_the_script_are_named(titan: Callable[..., Any]) -> None:
    ran = titan(*SLURM, "--dry-run", SBATCH_TIMELIMIT="1", SBATCH_GPUS="3")
    assert ran.err.startswith("before the options of the script, sbatch heeds SBATCH_GPUS, SBATCH_TIMELIMIT\n")


def signalled(command: tuple[str, ...], tmp_path: Path, sbatch: str, *numbers: signal.Signals) -> tuple[int, str]:
    """Exit code and errors of a launch that is sent signals once sbatch has begun."""
    scancel = f"#!/bin/sh\necho $@ >{tmp_path}/cancelled\n"
    path = commands(tmp_path / "bin", sbatch=f"#!/bin/sh\ntouch {tmp_path}/called; {sbatch}\n", scancel=scancel)
    environ = os.environ | {"PATH": path}
    launch = subprocess.Popen(
        [*command, *SLURM], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert launch.stderr is not None
    err = ""
    while not (tmp_path / "called").exists() and launch.poll() is None:
        time.sleep(0.02)
    for number in numbers:
        # The whole group, as a terminal does.
        os.killpg(launch.pid, number)
        err += launch.stderr.readline()
    (tmp_path / "signalled").touch()
    rest = launch.communicate(timeout=30)[1]
    return launch.returncode, err + rest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_job_that_is_submitted_while_the_launch_is_asked_to_end_is_cancelled(
    titan_command: tuple[str, ...], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    sbatch = f"while [ ! -e {tmp_path}/signalled ]; do sleep 0.05; done; echo 12"
    told = signalled(titan_command, tmp_path, sbatch, number)
    assert (told[0], told[1].endswith("asked to end: job 12 was submitted and is cancelled again\n")) == (code, True)
    assert ((tmp_path / "cancelled").read_text("utf-8"), (tmp_path / "runs").exists()) == ("12\n", False)


def test_a_second_interrupt_says_where_to_look_for_the_job(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    told = signalled(titan_command, tmp_path, "exec sleep 60", signal.SIGINT, signal.SIGINT)
    assert (told[0], "see squeue --me --name=x whether Slurm took the job" in told[1]) == (130, True)
    assert not (tmp_path / "runs").exists()


def test_without_sbatch_it_says_where_to_launch(titan: Callable[..., Any], tmp_path: Path) -> None:
    ran = titan(*SLURM, PATH=str(tmp_path))
    assert (ran.code, "error[U190]: there is no sbatch" in ran.err, (tmp_path / "runs").exists()) == (2, True, False)


def test_what_slurm_refuses_leaves_nothing(titan: Callable[..., Any], tmp_path: Path) -> None:
    path = commands(tmp_path / "bin", sbatch="#!/bin/sh\necho 'sbatch: error: no such partition' >&2; exit 1\n")
    ran = titan(*SLURM, PATH=path)
    assert (ran.code, (tmp_path / "runs").exists()) == (2, False)
    assert "error[U191]: Slurm does not take the job: no such partition\n" in ran.err


@pytest.mark.parametrize(
    ("sbatch", "says"),
    [
        ("#!/bin/sh\nexit 0\n", "sbatch ended well and told no number of a job, but ''"),
        ("#!/bin/sh\necho Submitted batch job 12\n", "told no number of a job, but 'Submitted batch job 12'"),
        ("#!/bin/sh\nprintf '\\377' >&2; exit 1\n", "Slurm does not take the job: "),
        ("#!/bin/sh\necho Could not establish a configuration source >&2; exit 1\n", "a machine where sinfo answers"),
        ("#!/no/such/shell\n", "sbatch cannot be started: no such file or directory"),
    ],
)
def test_an_sbatch_that_does_not_do_its_part_is_told(
    titan: Callable[..., Any], tmp_path: Path, sbatch: str, says: str
) -> None:
    commands(tmp_path / "bin", sbatch=sbatch)
    ran = titan(*SLURM, PATH=str(tmp_path / "bin"))
    assert (ran.code, "error[U191]: " in ran.err and says in ran.err) == (2, True), ran.err
    assert not (tmp_path / "runs").exists()


def test_lines_of_a_site_and_the_name_of_a_cluster_stand_around_the_number(
    titan: Callable[..., Any], tmp_path: Path
) -> None:
    asked = f"#!/bin/sh\necho $@ >{tmp_path}/asked\nprintf 'CLUSTER: far\\nPENDING\\n'\n"
    path = commands(tmp_path / "bin", sbatch="#!/bin/sh\nprintf 'welcome\\n12;far\\n'\n", squeue=asked)
    ran = titan(*SLURM, PATH=path)
    assert "next: squeue -M far -j 12; titan monitor x; scancel -M far 12 ends it\n" in ran.out
    assert "x is job 12 of Slurm (PENDING)" in titan(*SLURM, PATH=path).err
    assert "--clusters=far --jobs=12" in (tmp_path / "asked").read_text("utf-8")


def test_a_job_that_cannot_be_noted_is_named(titan: Callable[..., Any], tmp_path: Path) -> None:
    path = commands(tmp_path / "bin", sbatch='#!/bin/sh\nmkdir "${2%/*}/slurm.json"; echo 12\n')
    ran = titan(*SLURM, PATH=path)
    assert (ran.code, "error[U196]: job 12 of Slurm cannot be noted in runs/x: is a directory\n" in ran.err) == (
        2,
        True,
    )
    assert (tmp_path / "runs/x/job.sbatch").is_file()


def test_a_job_that_slurm_still_has_keeps_its_run_folder(titan: Callable[..., Any], tmp_path: Path) -> None:
    path = commands(tmp_path / "bin", sbatch="#!/bin/sh\necho 12\n", squeue="#!/bin/sh\necho PENDING\n")
    first = titan(*SLURM, PATH=path)
    assert (first.code, "x: job 12 of Slurm on 1 node, 2 processes on cpu, FSDP 2" in first.out) == (0, True)
    assert json.loads((tmp_path / "runs/x/slurm.json").read_text("utf-8")) == {"job_id": "12"}
    again = titan(*SLURM, "--overwrite", PATH=path)
    assert (again.code, "error[R104]: the run runs/x is job 12 of Slurm (PENDING)" in again.err) == (2, True)
    gone = commands(tmp_path / "gone", sbatch="#!/bin/sh\necho 13\n", squeue="#!/bin/sh\nexit 0\n")
    assert titan(*SLURM, "--overwrite", PATH=gone).code == 0
    assert (tmp_path / "runs/x.old-1/job.sbatch").is_file()


def test_tasks_have_the_variables_of_the_script_whatever_the_job_was_given_of_its_submitter() -> None:
    made = config(launch__slurm__extra="--export=NONE")
    text = script(Path("runs/x"), made, plan(made), preflight=True)
    assert "#SBATCH --export=NONE\n" in text
    assert re.findall(r"srun (?:.*\n *)?.*--export=(\w+) --output", text) == ["ALL", "ALL"]


def test_c44_tasks_that_are_not_one_a_node_are_refused_by_name(tmp_path: Path) -> None:
    made = config(cluster__gpu="cpu", cluster__nodes="1", cluster__gpus_per_node="2")
    (tmp_path / "job").write_text(script(tmp_path / "x", made, plan(made)), "utf-8")
    ran = run_script(tmp_path / "job", **INSIDE | {"SLURM_NTASKS_PER_NODE": "2"})
    assert ran.returncode == 2
    assert "SLURM_NTASKS=1, SLURM_NTASKS_PER_NODE=2\n" in ran.stderr


def test_a_script_that_is_submitted_by_hand_waits_for_no_job_that_has_its_folder(
    titan: Callable[..., Any], tmp_path: Path
) -> None:
    stopped = "#!/bin/sh\nexit 3\n"
    path = commands(tmp_path / "bin", sbatch="#!/bin/sh\necho 7\n", squeue="#!/bin/sh\necho 7\n", srun=stopped)
    assert titan(*SLURM, PATH=path).code == 0
    job = tmp_path / "runs/x/job.sbatch"
    by_hand = INSIDE | {"SLURM_JOB_ID": "8"}
    ran = run_script(job, PATH=path, **by_hand)
    assert (ran.returncode, "runs/x is the run folder of job 7, which has not ended\n" in ran.stderr) == (2, True)
    (job.parent / "events/rank-00000.jsonl").write_text("of job 7\n", "utf-8")
    gone = commands(tmp_path / "gone", srun=stopped, squeue=stopped, scontrol="#!/bin/sh\necho 127.0.0.1\n")
    assert run_script(job, PATH=gone, **by_hand).returncode == 1
    assert (job.parent / "before-8-0/events/rank-00000.jsonl").read_text("utf-8") == "of job 7\n"
    assert json.loads((job.parent / "slurm.json").read_text("utf-8")) == {"job_id": "8"}


@pytest.mark.world
def test_the_script_trains_and_a_job_that_is_started_again_keeps_what_it_wrote(
    titan: Callable[..., Any], tmp_path: Path
) -> None:
    path = commands(tmp_path / "bin", sbatch="#!/bin/sh\necho 7\n", srun=SRUN, scontrol="#!/bin/sh\necho 127.0.0.1\n")
    steps = ("--training.steps", "3", "--lr_scheduler.warmup_steps", "1")
    assert titan(*SLURM, *steps, PATH=path).code == 0
    run = tmp_path / "runs/x"
    (run / "events/rank-00000.jsonl").write_text("of the first try\n", "utf-8")
    outer = {"RANK": "5", "MASTER_ADDR": "nowhere.invalid", "TITAN_TRAINING__STEPS": "9"}
    ran = run_script(run / "job.sbatch", PATH=path, **INSIDE, **outer, SLURM_RESTART_COUNT="1")
    assert (ran.returncode, ran.stdout.startswith("done: 3 of 3 steps in ")) == (0, True)
    assert (run / "before-7-1/events/rank-00000.jsonl").read_text("utf-8") == "of the first try\n"
    assert json.loads((run / "launcher.json").read_text("utf-8"))["exit_code"] == 0


def test_a_failed_run_is_started_again_in_its_job_as_often_as_promised(
    titan: Callable[..., Any], tmp_path: Path
) -> None:
    fails = f"#!/bin/sh\necho >>{tmp_path}/started; exit 1\n"
    path = commands(tmp_path / "bin", sbatch="#!/bin/sh\necho 7\n", srun=fails, scontrol="#!/bin/sh\necho 127.0.0.1\n")
    assert titan(*SLURM, "--checkpoint.enable", "--max-restarts=1", PATH=path).code == 0
    ran = run_script(tmp_path / "runs/x/job.sbatch", PATH=path, **INSIDE)
    assert (ran.returncode, (tmp_path / "started").read_text("utf-8")) == (1, "\n\n")
    assert ran.stdout.splitlines() == [
        "restart 1 of 1: the run failed, and no rank said why; starts at step 1, as no checkpoint is committed",
        "not started again: 1 restart of launch.max_restarts is used up",
    ]


def test_resume_submits_the_folder_of_a_job_that_has_ended_again(titan: Callable[..., Any], tmp_path: Path) -> None:
    path = commands(tmp_path / "bin", sbatch="#!/bin/sh\necho 7\n", squeue="#!/bin/sh\nexit 0\n")
    assert titan(*SLURM, "--checkpoint.enable", PATH=path).code == 0
    (tmp_path / "runs/x/events/rank-00000.jsonl").write_text("of job 7\n", "utf-8")
    path = commands(tmp_path / "later", sbatch="#!/bin/sh\necho 8\n", squeue="#!/bin/sh\nexit 0\n")
    ran = titan(*SLURM, "--checkpoint.enable", "--resume", "--training.steps=300", PATH=path)
    assert (ran.code, "other than at its last launch: training.steps is " in ran.out) == (
        0,
        True,
    )
    assert json.loads((tmp_path / "runs/x/slurm.json").read_text("utf-8")) == {"job_id": "8"}
    assert (tmp_path / "runs/x/events/rank-00000.jsonl").read_text("utf-8") == "of job 7\n"
    refused = commands(tmp_path / "no", sbatch="#!/bin/sh\nexit 1\n", squeue="#!/bin/sh\nexit 0\n")
    assert titan(*SLURM, "--checkpoint.enable", "--resume", PATH=refused).code == 2
    assert (tmp_path / "runs/x/events/rank-00000.jsonl").is_file(), "what stood there stays"


@pytest.mark.parametrize("enable", ["true", "false"])
def test_a_job_says_whether_it_goes_back_into_the_queue(titan: Callable[..., Any], tmp_path: Path, enable: str) -> None:
    path = commands(tmp_path / "bin", sbatch="#!/bin/sh\necho 7\n")
    said = titan(*SLURM, f"--checkpoint.enable={enable}", PATH=path).out
    assert ("preempted or out of time it saves, and the job goes back into the queue" in said) is (enable == "true")


def test_preflight_goes_before_the_run_in_the_script(titan: Callable[..., Any]) -> None:
    ran = titan(*SLURM, "--preflight", "--dry-run")
    assert subprocess.run(["bash", "-n"], input=ran.out, text=True, check=False).returncode == 0
    assert ran.out.index("-m engine.preflight") < ran.out.index("-m titancli.launch.preflight")
    assert ran.out.index("-m titancli.launch.preflight") < ran.out.index("-m engine ")


@pytest.mark.parametrize(("grace", "patience"), [("5.5", "6"), ("600", "30")])
def test_a_frozen_node_does_not_hold_the_others_for_a_long_grace(
    titan: Callable[..., Any], grace: str, patience: str
) -> None:
    assert f" --wait={patience} " in titan(*SLURM, "--launch.grace_seconds", grace, "--dry-run").out
