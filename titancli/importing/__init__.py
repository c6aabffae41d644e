"""`titan import`: a config of torchtitan 0.2 becomes one of titan's, and every key that changed is named.

Knows the order of things: read (source), turn (convert), write and tell (told). The keys themselves are data (table).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from engine.config import Config
from engine.errors import TitanError
from engine.keys import field_types, nested
from engine.reading.layers import toml_layer
from engine.reading.origins import DEFAULT, Origin
from engine.rules import check
from engine.sources import Flag, Loaded
from titancli import report
from titancli.config_file import check_target, next_steps, say_written, schema_line, write_config
from titancli.importing.convert import convert
from titancli.importing.source import read_source
from titancli.importing.told import say_import, say_verdict, to_json, toml_of

_EXIT_WRONG = 2


def import_file(
    file: str,
    hardware: Mapping[str, str | None],
    flags: Sequence[Flag] = (),
    *,
    output: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Writes the titan config to `output`, or prints it; 0, or 2 where something cannot be taken over.

    `hardware` are the keys of [cluster] that have a flag of their own, None where it is not given. Without `output`
    the config is all of stdout, so that it can be piped, and what is said of it goes to stderr. Of a file with a key
    that is refused nothing is written.
    """
    if output is not None:
        check_target(output, force=force)
    done = convert(read_source(file), [*_short(hardware), *flags])
    if not done.ok:
        if not as_json:
            raise TitanError(*done.findings)
        _write(to_json(done, None, None, output))
        return _EXIT_WRONG
    text = toml_of(done, schema=None if output is None else schema_line(output))
    loaded = _loaded(text, output or file)
    config, checked = loaded.config, check(loaded)
    if output is not None:
        written = write_config(output, text, force=force)
    if as_json:
        _write(to_json(done, text, checked, output))
        return 0
    stream = sys.stderr if output is None else sys.stdout
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    say_import(done, stream)
    say_verdict(checked, stream)
    if output is not None:
        report.say("")
        say_written(written)
        report.say(next_steps(output, nodes=config.cluster.nodes))
    return 0


def _short(hardware: Mapping[str, str | None]) -> list[Flag]:
    """The command's own flags as the keys that they are short for."""
    return [
        Flag(key, value, f"--{key.rpartition('.')[2].replace('_', '-')}")
        for key, value in hardware.items()
        if value is not None
    ]


def _loaded(text: str, file: str) -> Loaded:
    """The config of the text that is written."""
    layer = toml_layer(text, Origin("file", file))
    assert not layer.findings, f"titan import wrote what titan does not read: {layer.findings}"
    return Loaded(
        config=Config.model_validate(nested(layer.values)),
        origins=dict.fromkeys(field_types(), DEFAULT) | layer.origins,
        findings=(),
        broken=frozenset(),
        stem="titan",
    )


def _write(told: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(told, allow_nan=False) + "\n")
