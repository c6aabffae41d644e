"""What tests of reading a config share."""

import pytest

from engine.sources import Loaded, load, split_flags


@pytest.fixture
def read(tmp_path):
    """Read a text as run.toml, with flags as one line of a command, and variables."""

    def read(text=None, flags="", **environ) -> Loaded:
        path = None
        if text is not None:
            path = tmp_path / "run.toml"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        rest, dotted = split_flags(flags.split())
        assert rest == []
        return load(path, flags=dotted, environ=environ)

    return read
