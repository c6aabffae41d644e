"""Arguments and flags that several commands take, each with its one line of help.

Knows names and words. Does not know which command takes them (app, groups).
"""

from __future__ import annotations

from typing import Annotated

import typer

Config = Annotated[str | None, typer.Argument(metavar="CONFIG", help="A TOML file; goes over the preset.")]
Preset = Annotated[str | None, typer.Option("--preset", metavar="NAME", help="A preset; see titan presets.")]
Run = Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder or its name; the newest run without.")]
DumpFolder = Annotated[str, typer.Option("--dump-folder", metavar="DIR", help="The folder that holds the runs.")]
Output = Annotated[str | None, typer.Option("--output", metavar="FILE", help="Where to write it.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
ForceFolder = Annotated[bool, typer.Option("--force", help="Replace a folder that is there.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
