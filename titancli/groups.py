"""The commands that come in groups: `titan data ...` and `titan checkpoint ...`.

Knows names, arguments and help, as app does for those that stand alone. Each body imports its room when it runs.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from titancli.arguments import Config, DumpFolder, ForceFolder, Json, Preset
from titancli.help import KEYS, SETTINGS, Command, Commands


def _group(name: str, does: str) -> typer.Typer:
    settings: dict[str, Any] = {"context_settings": SETTINGS, "rich_markup_mode": None}
    return typer.Typer(name=name, cls=Commands, help=does, add_completion=False, **settings)


data = _group("data", "Look at the data of a config, and make it ready.")
checkpoint = _group("checkpoint", "List, prove and convert the checkpoints of a run.")

_Where = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A run folder or its name, or checkpoints by path or URL; the newest run without."
    ),
]
_Step = Annotated[int | None, typer.Option("--step", metavar="N", help="Which step; the newest without.")]


@data.command(cls=Command, epilog=KEYS)
def check(
    context: typer.Context,
    config: Config = None,
    preset: Preset = None,
    sample: Annotated[int, typer.Option("--sample", metavar="N", help="Tokens of the first sample to show.")] = 64,
    json: Json = False,
) -> int:
    """Read all data of a config: what is in it, how far it goes."""
    from titancli.data.check import check

    return check(config, preset, context.obj, sample=sample, as_json=json)


@data.command(cls=Command, epilog=KEYS)
def prepare(
    context: typer.Context,
    config: Config = None,
    preset: Preset = None,
    output: Annotated[
        str | None, typer.Option("--output", metavar="DIR", help="Where the tokens go, not the usual place.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Processes that tokenise; one a core without.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Make tokens anew that are there.")] = False,
    json: Json = False,
) -> int:
    """Tokenise a corpus once, in parallel, for all runs to map."""
    from titancli.data.prepare import prepare

    return prepare(config, preset, context.obj, output=output, workers=workers, force=force, as_json=json)


@checkpoint.command(cls=Command)
def ls(run: _Where = None, dump_folder: DumpFolder = "runs", json: Json = False) -> int:
    """List the checkpoints of a run: step, age, size, layout."""
    from titancli.checkpoint.ls import ls

    return ls(run, dump_folder=dump_folder, as_json=json)


@checkpoint.command(cls=Command)
def verify(
    run: _Where = None,
    dump_folder: DumpFolder = "runs",
    step: _Step = None,
    values: Annotated[bool, typer.Option("--values", help="Read every tensor too, not names and sizes alone.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Every committed step, not the newest alone.")] = False,
    json: Json = False,
) -> int:
    """Prove that checkpoints are whole: files, sizes, contents."""
    from titancli.checkpoint.verify import verify

    return verify(run, dump_folder=dump_folder, step=step, every=every, values=values, as_json=json)


@checkpoint.command(cls=Command)
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder or its name.")],
    output: Annotated[str | None, typer.Option("--output", metavar="DIR", help="The folder to write.")] = None,
    step: _Step = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="NAME", help="float32 or bfloat16; as it is kept without.")
    ] = None,
    dump_folder: DumpFolder = "runs",
    force: ForceFolder = False,
    json: Json = False,
) -> int:
    """Write a checkpoint as Hugging Face safetensors, checked."""
    from titancli.checkpoint.export import export

    return export(run, output=output, step=step, dtype=dtype, dump_folder=dump_folder, force=force, as_json=json)


@checkpoint.command(cls=Command, name="import")
def import_(
    folder: Annotated[
        str,
        typer.Argument(metavar="DIR", help="A folder in Hugging Face's form, Meta's or torchtitan's."),
    ],
    output: Annotated[str | None, typer.Option("--output", metavar="DIR", help="The folder to write.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar="NAME", help="As training.dtype of its runs.")] = "float32",
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="8B or qwen3-8B, of torchtitan's, which says none.")
    ] = None,
    force: ForceFolder = False,
    json: Json = False,
) -> int:
    """Make Hugging Face safetensors a checkpoint to begin from."""
    from titancli.checkpoint.import_ import import_

    return import_(folder, output=output, dtype=dtype, model=model, force=force, as_json=json)
