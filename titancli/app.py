"""The commands: names, arguments and exit codes. Each body imports its room when it runs.

Knows how a command line is read and how mistakes in it are told. Does not know what the commands do.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.errors import EXIT_INTERRUPTED, EXIT_RUN_FAILED, Finding, TitanError
from titancli import report

if TYPE_CHECKING:
    from engine.sources import Flag

# The class is public only as the parent of a public one, in every typer from 0.15 on.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
# What the parser itself ends with where nobody reads its output any more.
_BROKEN_PIPE = 1
_DOTTED = re.compile(r"--[\w-]+\.[\w.-]+(=.*)?", re.DOTALL)
_TAKES_CONFIG = ("launch", "validate", "plan")
_KEYS = "Any key of the config can be given as a flag: --section.key VALUE, --section.key=VALUE, --no-section.key."

app = typer.Typer(
    name="titan",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Plan, prove, launch and watch the training of large models on many GPUs.",
    epilog=_KEYS,
)

_Config = Annotated[str | None, typer.Argument(metavar="CONFIG", help="A TOML file; goes over the preset.")]
_Preset = Annotated[str | None, typer.Option("--preset", metavar="NAME", help="A preset; see titan presets.")]
_Run = Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder or its name; the newest run without.")]
_DumpFolder = Annotated[str, typer.Option("--dump-folder", metavar="DIR", help="The folder that holds the runs.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]


@app.callback(invoke_without_command=True)
def titan(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Plan, prove, launch and watch the training of large models on many GPUs."""
    if version:
        typer.echo(f"titan {_version()}")
        raise typer.Exit


@app.command(epilog=_KEYS)
def launch(
    context: typer.Context,
    config: _Config = None,
    preset: _Preset = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the run: job.name.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run of that name.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew; a run folder of that name is moved aside.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the exact command and start nothing.")] = False,
) -> int:
    """Check a config, then train with it on this machine."""
    from titancli.launch import Options, launch

    options = Options(name=name, resume=resume, overwrite=overwrite, dry_run=dry_run)
    return launch(config, preset, context.obj, options)


@app.command(epilog=_KEYS)
def validate(
    context: typer.Context,
    config: _Config = None,
    preset: _Preset = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build and step every pipeline rank, without GPUs; takes a minute or two.")
    ] = False,
    stack: Annotated[
        str,
        typer.Option("--stack", metavar="NAME", help="Predict another engine: torchtitan, megatron or llm-foundry."),
    ] = "titan",
    json: _Json = False,
) -> int:
    """Check a config: all findings, and the plan."""
    from titancli.validate import validate

    return validate(config, preset, context.obj, stack=stack, dry_run=dry_run, as_json=json)


@app.command(epilog=_KEYS)
def plan(
    context: typer.Context,
    config: _Config = None,
    preset: _Preset = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="8B, or with a family: qwen3 32B.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="KIND", help="h100-80, h200, ..., cpu or auto.")] = None,
    nodes: Annotated[str | None, typer.Option("--nodes", metavar="N", help="Machines.")] = None,
    gpus_per_node: Annotated[str | None, typer.Option("--gpus-per-node", metavar="N", help="GPUs of each.")] = None,
    seq_len: Annotated[str | None, typer.Option("--seq-len", metavar="N", help="Tokens of a sequence.")] = None,
    goal: Annotated[
        str, typer.Option("--goal", metavar="GOAL", help="prototype, production or max-performance.")
    ] = "production",
    global_batch: Annotated[
        str | None, typer.Option("--global-batch", metavar="N", help="Sequences of a step; free without.")
    ] = None,
    top: Annotated[str, typer.Option("--top", metavar="N", help="Layouts to show.")] = "5",
    output: Annotated[str | None, typer.Option("--output", metavar="FILE", help="Write the best as a config.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: _Json = False,
) -> int:
    """Search the best layouts of a model on GPUs; keys given as flags are kept."""
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
        top=top,
    )
    return plan(config, preset, context.obj, asked, output=output, force=force, as_json=json)


@app.command()
def presets(json: _Json = False) -> int:
    """List the presets: model, GPUs, layout and figures."""
    from titancli.presets import presets

    return presets(as_json=json)


@app.command()
def doctor(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure products, memory and links; plans use it. Takes under a minute.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Where the measured rates go, not the usual place.")
    ] = None,
    json: _Json = False,
) -> int:
    """Look at this machine: whether it can do the work and, with --measure, how fast it is."""
    from titancli.doctor import doctor

    return doctor(measure=measure, output=output, as_json=json)


@app.command()
def monitor(
    run: _Run = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    json: _Json = False,
    dump_folder: _DumpFolder = "runs",
) -> int:
    """Watch a run: loss, speed, memory of every rank."""
    from titancli.monitor import monitor

    return monitor(run, dump_folder=dump_folder, once=once, as_json=json)


@app.command()
def logs(
    run: _Run = None,
    rank: Annotated[int | None, typer.Option("--rank", metavar="N", help="Only this rank.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on printing until the run ends.")] = False,
    dump_folder: _DumpFolder = "runs",
) -> int:
    """Print the ranks' logs, the first failure first."""
    from titancli.logs import logs

    return logs(run, dump_folder=dump_folder, rank=rank, follow=follow)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("titan-train")
    except PackageNotFoundError:
        return "(not installed: it runs from a source folder)"


def main() -> None:
    """Runs the command line of this process; ends it with the exit code."""
    sys.exit(run_command_line(sys.argv[1:]))


def run_command_line(words: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; mistakes of a person are told on stderr."""
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except TitanError as mistakes:
        _tell(mistakes.findings)
        return mistakes.exit_code
    except BrokenPipeError:
        report.lose(sys.stdout)
        return _BROKEN_PIPE
    except OSError as trouble:
        if trouble.filename is not None:
            raise
        # Without a file's name it is the output that could not be written, to a full disk for one.
        report.lose(sys.stdout)
        reason = (trouble.strerror or str(trouble)).lower()
        _tell((report.error("U107", f"cannot write the output: {reason}", "send it where there is room"),))
        return EXIT_RUN_FAILED
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    return code


def _tell(findings: Sequence[Finding]) -> None:
    """Findings on stderr; where it cannot take them either, the exit code says enough."""
    try:
        report.say_findings(findings)
    except OSError:
        report.lose(sys.stderr)


def _dispatch(words: Sequence[str]) -> int:
    flags: tuple[Flag, ...] = ()
    rest = list(words)
    if all(word == "--" for word in rest):
        rest = ["--help"]
    if any(_DOTTED.fullmatch(word) for word in words):
        from engine.sources import split_flags

        rest, flags = split_flags(words)
    command = next((word for word in rest if not word.startswith("-")), None)
    early = rest[0].partition("=")[0]
    later = next((word for word in rest if word in _commands()), None)
    if later is not None and early.startswith("--") and early != "--" and early not in _flags(None):
        message = f"{early} stands before the command, and titan itself has no such flag"
        raise TitanError(report.error("U102", message, f"write it after the command: titan {later} {early}"))
    if command is not None and command not in _commands():
        named = command if command.strip() else f'"{command}"'
        raise TitanError(_unknown("U101", f"there is no command {named}", command, _commands()))
    if flags and command not in _TAKES_CONFIG:
        taker = f"titan {command}" if command else "titan without a command"
        message = f"{taker} takes no config, so {flags[0].text} means nothing to it"
        raise TitanError(report.error("U104", message, f"leave {flags[0].text} out"))
    try:
        code = app(args=rest, obj=flags, prog_name="titan", standalone_mode=False)
    except _UsageError as mistake:
        raise TitanError(_told(mistake, command)) from None
    return code if isinstance(code, int) else 0


def _told(mistake: Exception, command: str | None) -> Finding:
    """A usage error of the command-line parser as a finding, with the nearest flag."""
    taker = f"titan {command}" if command else "titan"
    describe = getattr(mistake, "format_message", mistake.__str__)
    message = str(describe()).rstrip(".")
    if message.startswith("No such option"):
        wrong = str(getattr(mistake, "option_name", ""))
        return _unknown("U102", f"{taker} has no flag {wrong}", wrong, _flags(command))
    return report.error("U105", message[:1].lower() + message[1:], f"see {taker} --help")


def _unknown(rule: str, message: str, word: str, known: Sequence[str]) -> Finding:
    """A finding for a word that is not known, with the nearest that is."""
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return report.error(rule, message, f"write {near[0]}" if near else f"use one of {', '.join(known)}")


def _commands() -> list[str]:
    return [command.callback.__name__ for command in app.registered_commands if command.callback is not None]


def _flags(command: str | None) -> list[str]:
    """The flags of a command, or of titan itself, as the parser knows them."""
    parsed: Any = typer.main.get_command(app)
    parameters = parsed.commands[command].params if command else parsed.params
    flags = [flag for parameter in parameters for flag in parameter.opts if flag.startswith("--")]
    return [*flags, "--help"]
