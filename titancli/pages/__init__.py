"""The pages of titan, written from what the commands, the keys and the rules say of themselves.

Knows which pages there are. `python -m titancli.pages` writes them, and the pictures, beside this file; they are for
readers of the repository and no part of an installation.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    from titancli.pages import commands, keys, rules

    return {"README.md": commands.index(), **commands.pages(), "keys.md": keys.page(), "rules.md": rules.page()}
