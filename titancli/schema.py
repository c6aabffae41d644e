"""`titan schema`: the JSON Schema of configs, printed or written to a file.

Knows where it goes. Does not know what it says (engine.schema).
"""

from __future__ import annotations

import sys

from engine.schema import schema_text
from titancli.config_file import say_written
from titancli.whole_file import write_file


def schema(*, output: str | None, force: bool) -> int:
    """Prints the schema, or writes it and says where; always 0. TitanError where it cannot be written."""
    if output is None:
        sys.stdout.write(schema_text())
        return 0
    written = write_file(output, schema_text(), force=force)
    say_written([written])
    return 0
