"""Where the text of a config is: files and the presets that come with titan.

Knows paths, names and encodings. Does not know TOML.
"""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import Finding, TitanError
from engine.reading.nearest import nearest

# A device without an end is a path too.
_MOST_BYTES = 4 << 20


def preset_names() -> tuple[str, ...]:
    """The presets that come with titan, by name."""
    from importlib.resources import files

    names = (entry.name for entry in files("presets").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def preset_text(name: str) -> str:
    """The TOML of a preset; TitanError (S104) where there is none of that name."""
    from importlib.resources import files

    names = preset_names()
    if name not in names:
        near = nearest(name, names)
        fix = f"write --preset {near}" if near else f"choose one of {', '.join(names)}"
        raise TitanError(
            Finding(
                rule="S104",
                severity="error",
                key="",
                message=f"there is no preset {name}",
                fix=fix,
                source=f"preset {name}",
            )
        )
    return files("presets").joinpath(f"{name}.toml").read_text("utf-8")


def file_text(path: str | Path) -> str:
    """The text of a file; TitanError: S104 where it is not there, not readable or too large, S103 where not UTF-8."""
    name = os.fspath(path) or "."
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        if os.path.islink(path):
            message = f"{name} is a link to {os.readlink(path)}, which is not there"
            raise _refused("S104", message, "mend the link, or give another path", name) from error
        raise _refused("S104", f"there is no file {name}", _meant(Path(path)), name) from error
    except IsADirectoryError as error:
        raise _refused("S104", f"{name} is a folder", "give the path of a TOML file", name) from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        fix = "give the path of a TOML file that you may read"
        raise _refused("S104", f"{name} cannot be read: {reason}", fix, name) from error
    if len(raw) > _MOST_BYTES:
        raise _refused("S104", f"{name} is larger than any config ({_MOST_BYTES >> 20} MiB)", "give a TOML file", name)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8 text"
        raise _refused("S103", message, "save the file as UTF-8", name, line) from error


def _refused(rule: str, message: str, fix: str, file: str, line: int | None = None) -> TitanError:
    return TitanError(Finding(rule=rule, severity="error", key="", message=message, fix=fix, file=file, line=line))


def _meant(path: Path) -> str:
    """What a path that is not there may have meant: a preset, or a file in that folder."""
    name = path.name.removesuffix(".toml")
    if name in preset_names() and path.parent in (Path(), Path("presets")):
        return f"write --preset {name}"
    try:
        here = tuple(sorted(entry.stem for entry in path.parent.iterdir() if entry.suffix == ".toml"))
    except (OSError, ValueError):
        return f"give the path of a TOML file: there is no folder {path.parent} either"
    near = nearest(path.stem, here)
    return f"write {path.with_name(f'{near}.toml')}" if near else "give the path of a TOML file, or --preset NAME"
