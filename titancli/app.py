"""The commands: names, arguments and help. Each body imports its room when it runs.

Those that come in groups stand in groups. Does not know how a command line is taken apart (dispatch) nor what the
commands do.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import typer

from titancli.arguments import Config, DumpFolder, Force, Json, Output, Preset, Run
from titancli.examples import EXAMPLES
from titancli.groups import checkpoint, data
from titancli.help import KEYS, SETTINGS, Command, Commands

app = typer.Typer(
    name="titan",
    cls=Commands,
    context_settings=SETTINGS,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Plan, prove, launch and watch the training of large models on many GPUs.",
    epilog=KEYS,
)
app.add_typer(data)
app.add_typer(checkpoint)

_Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="8B; with a family: qwen3-32B.")]
_Gpu = Annotated[
    str | None, typer.Option("--gpu", metavar="KIND", help="h100-80, h200, b200, ..., cpu; auto: what is here.")
]
_Nodes = Annotated[str | None, typer.Option("--nodes", metavar="N", help="How many machines.")]
_GpusPerNode = Annotated[str | None, typer.Option("--gpus-per-node", metavar="N", help="GPUs of each machine.")]
_SeqLen = Annotated[str | None, typer.Option("--seq-len", metavar="N", help="Tokens of a sequence; 8k is 8,192.")]
_GlobalBatch = Annotated[
    str | None, typer.Option("--global-batch", metavar="N", help="Sequences of a step; without, the search is free.")
]
_Goal = "prototype, production or max-performance."


@app.callback(invoke_without_command=True)
def titan(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Plan, prove, launch and watch the training of large models on many GPUs."""
    if version:
        typer.echo(f"titan {_version()}")
        raise typer.Exit


@app.command(cls=Command, epilog=KEYS)
def init(
    context: typer.Context,
    preset: Preset = None,
    model: _Model = None,
    gpu: _Gpu = None,
    nodes: _Nodes = None,
    gpus_per_node: _GpusPerNode = None,
    seq_len: _SeqLen = None,
    global_batch: _GlobalBatch = None,
    goal: Annotated[str | None, typer.Option("--goal", metavar="GOAL", help=_Goal)] = None,
    choice: Annotated[
        str | None, typer.Option("--choice", metavar="N", help="Which of the ranked plans; the best without.")
    ] = None,
    output: Output = None,
    force: Force = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: the defaults answer what no flag does.")] = False,
) -> int:
    """Make a config: a few questions, the best layouts, a file."""
    from titancli.init import Answers, init

    answers = Answers(
        model=model,
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        seq_len=seq_len,
        global_batch=global_batch,
        goal=goal,
        choice=choice,
    )
    return init(preset, context.obj, answers, output=output, force=force, yes=yes)


@app.command(cls=Command, epilog=KEYS)
def plan(
    context: typer.Context,
    config: Config = None,
    preset: Preset = None,
    model: _Model = None,
    gpu: _Gpu = None,
    nodes: _Nodes = None,
    gpus_per_node: _GpusPerNode = None,
    seq_len: _SeqLen = None,
    global_batch: _GlobalBatch = None,
    goal: Annotated[str | None, typer.Option("--goal", metavar="GOAL", help=_Goal)] = None,
    top: Annotated[str, typer.Option("--top", metavar="N", help="How many layouts to show.")] = "5",
    output: Annotated[str | None, typer.Option("--output", metavar="FILE", help="Write the best as a config.")] = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Find the best layouts for a model, and say why others lost."""
    from titancli.plan import plan
    from titancli.question import Asked

    asked = Asked(
        model=model,
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        seq_len=seq_len,
        global_batch=global_batch,
        goal=goal,
    )
    return plan(config, preset, context.obj, asked, top=top, output=output, force=force, as_json=json)


@app.command(cls=Command, epilog=KEYS)
def validate(
    context: typer.Context,
    config: Config = None,
    preset: Preset = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build and step every pipeline rank, without GPUs; takes a minute or two.")
    ] = False,
    stack: Annotated[
        str,
        typer.Option("--stack", metavar="NAME", help="Predict another engine: torchtitan, megatron or llm-foundry."),
    ] = "titan",
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="NAME", help="Compare with this config or preset, not the one without flags."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Check a config: all findings, and the plan in numbers."""
    from titancli.validate import validate

    return validate(config, preset, context.obj, stack=stack, against=against, dry_run=dry_run, as_json=json)


@app.command(cls=Command, name="explain-config", epilog=KEYS)
def explain_config(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONFIG] [KEY]", help="A TOML file; a key, the id of a finding, or strategies."),
    ] = None,
    preset: Preset = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print the resolved config as TOML.")] = False,
    json: Json = False,
) -> int:
    """Say where each value came from, what it does and costs."""
    from titancli.explain import explain_config

    return explain_config(words or [], preset, context.obj, as_toml=toml, as_json=json)


@app.command(cls=Command, epilog=KEYS)
def launch(
    context: typer.Context,
    config: Config = None,
    preset: Preset = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the run: job.name.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run of that name.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew; a run folder of that name is moved aside.")
    ] = False,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="NAME", help="local, slurm or kubernetes: launch.scheduler.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the exact command, script or manifest; start nothing.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Come back once it has started; it goes on without this terminal.")
    ] = False,
    preflight: Annotated[
        bool, typer.Option("--preflight", help="Measure every GPU and link first; takes under a minute.")
    ] = False,
    max_restarts: Annotated[
        str | None,
        typer.Option("--max-restarts", metavar="N", help="Times a failed run is started again: launch.max_restarts."),
    ] = None,
    nnodes: Annotated[
        str | None, typer.Option("--nnodes", metavar="N", help="Machines that this is called on: cluster.nodes.")
    ] = None,
    node_rank: Annotated[
        str | None, typer.Option("--node-rank", metavar="K", help="Which of them this one is, from 0.")
    ] = None,
    rdzv_endpoint: Annotated[
        str | None,
        typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Where they meet: an address and port of node 0."),
    ] = None,
) -> int:
    """Check a config, then train with it, here or on a cluster."""
    from titancli.launch import Options, launch

    options = Options(
        name=name,
        scheduler=scheduler,
        resume=resume,
        overwrite=overwrite,
        dry_run=dry_run,
        detach=detach,
        preflight=preflight,
        max_restarts=max_restarts,
        nnodes=nnodes,
        node_rank=node_rank,
        rdzv_endpoint=rdzv_endpoint,
    )
    return launch(config, preset, context.obj, options)


@app.command(
    cls=Command,
    epilog="The screen shows where the time of a step goes, every GPU, each beside the plan, and what is wrong with "
    "its fix; arrows, PgUp and PgDn move over the ranks, s changes their order, a shows all alerts, ? all keys, q "
    "leaves.",
)
def monitor(
    run: Run = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    json: Json = False,
    dump_folder: DumpFolder = "runs",
) -> int:
    """Watch a run: loss, speed and memory of every rank."""
    from titancli.monitor import monitor

    return monitor(run, dump_folder=dump_folder, once=once, as_json=json)


@app.command(cls=Command)
def logs(
    run: Run = None,
    rank: Annotated[int | None, typer.Option("--rank", metavar="N", help="Only this rank.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on printing until the run ends.")] = False,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", metavar="N", help="An earlier attempt of a run that was started again, from 1."),
    ] = None,
    dump_folder: DumpFolder = "runs",
) -> int:
    """Print the ranks' logs, the first failure first."""
    from titancli.logs import logs

    return logs(run, dump_folder=dump_folder, rank=rank, follow=follow, attempt=attempt)


@app.command(cls=Command)
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Run folders or their names; the first one is the reference."),
    ],
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="WHAT", help="Draw losses only against steps, tokens or time."),
    ] = None,
    smooth: Annotated[
        str | None,
        typer.Option("--smooth", metavar="W", help="Draw a mean that weighs what came before by W, such as 0.9."),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="X",
            help="Test: exit 1 where a loss is further from the first run's than X of it, such as 0.01.",
        ),
    ] = None,
    png: Annotated[
        str | None, typer.Option("--png", metavar="FILE", help="Draw the curves into a picture; .svg and .pdf too.")
    ] = None,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write all logged steps of all runs as a table.")
    ] = None,
    force: Force = False,
    json: Json = False,
    dump_folder: DumpFolder = "runs",
) -> int:
    """Compare runs: loss, speed and memory, as table and curves."""
    from titancli.compare import Wanted, compare

    wanted = Wanted(against=against, smooth=smooth, tolerance=tolerance, png=png, csv=csv, force=force, as_json=json)
    return compare(runs, wanted, dump_folder=dump_folder)


@app.command(cls=Command)
def presets(json: Json = False) -> int:
    """List the presets: model, GPUs, layout and figures."""
    from titancli.presets import presets

    return presets(as_json=json)


@app.command(cls=Command)
def doctor(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure products, memory and links; plans use it. Takes under a minute.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Where the measured rates go, not the usual place.")
    ] = None,
    json: Json = False,
) -> int:
    """Look at this machine: can it do the work, and how fast."""
    from titancli.doctor import doctor

    return doctor(measure=measure, output=output, as_json=json)


@app.command(cls=Command, name="import", epilog=KEYS)
def import_(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file of torchtitan 0.2.")],
    gpu: _Gpu = None,
    nodes: _Nodes = None,
    gpus_per_node: _GpusPerNode = None,
    output: Output = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Turn a torchtitan config into one of titan's, key by key."""
    from titancli.importing import import_file

    hardware = {"cluster.gpu": gpu, "cluster.nodes": nodes, "cluster.gpus_per_node": gpus_per_node}
    return import_file(file, hardware, context.obj, output=output, force=force, as_json=json)


@app.command(cls=Command)
def schema(output: Output = None, force: Force = False) -> int:
    """Print the JSON Schema with which editors check a config."""
    from titancli.schema import schema

    return schema(output=output, force=force)


@app.command(cls=Command)
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> int:
    """Print the script for a shell that completes flags and keys."""
    from titancli.completion import completion

    return completion(shell)


@cache
def parsed() -> Any:
    """The commands as the parser knows them, with their arguments, flags and help, in the order of their examples."""
    titan: Any = typer.main.get_command(app)
    # The parser has groups before all others.
    titan.commands = {name: titan.commands[name] for name in dict.fromkeys(name.split()[0] for name in EXAMPLES)}
    return titan


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("titan-train")
    except PackageNotFoundError:
        return "(not installed: it runs from a source folder)"
