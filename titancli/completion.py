"""How a shell asks for what could stand at the cursor, and how it is answered.

Knows the scripts and the protocol of the parser's library, whose private names stand only here. Does not know what is
offered (offers). Where nothing is, the scripts leave it to the shell, which offers files.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from engine.errors import TitanError
from engine.reading.nearest import nearest
from titancli import report

Shell = Literal["bash", "zsh", "fish"]
VARIABLE = "_TITAN_COMPLETE"
"""The variable of the environment in which a shell asks: `complete_bash`."""
_PROGRAM = "titan"
# Characters that mean something where zsh reads a list of words with their help.
_ZSH = str.maketrans({'"': '""', "'": "'\\''", "$": "\\$", "`": "\\`", ":": "\\\\:"})


def completion(shell: str) -> int:
    """Prints the script that a shell reads at its start; TitanError for a shell that is not known."""
    known = get_args(Shell)
    if shell not in known:
        near = nearest(shell, known)
        fix = f"write {near}" if near else f"write one of {', '.join(known)}"
        raise TitanError(report.error("U180", f"titan completes in no shell called {shell or 'nothing'}", fix))
    from typer import _completion_shared as library

    report.say(library.get_completion_script(prog_name=_PROGRAM, complete_var=VARIABLE, shell=shell))
    return 0


def answer(request: str) -> int:
    """Answers a shell that asks `complete_bash`, with its words in the environment; 1 where it asks anything else."""
    task, _, shell = request.partition("_")
    if task != "complete" or shell not in get_args(Shell):
        return 1
    print(_asking(shell).complete())
    return 0


def _asking(shell: str) -> Any:
    """The library's side of the protocol, with titan's words and without its help texts, which ask for rich."""
    from typer import _completion_classes as library

    from titancli.offers import offers

    asking: Any = {"bash": library.BashComplete, "zsh": library.ZshComplete, "fish": library.FishComplete}[shell]
    ours: dict[str, Any] = {
        "get_completions": lambda _, words, begun: offers(words, begun),
        "format_completion": lambda _, offer: _formatted(offer.value, offer.help, shell),
    }
    return type("Asking", (asking,), ours)(None, {}, _PROGRAM, VARIABLE)


def _formatted(value: str, text: str, shell: str) -> str:
    """One offer as the script of a shell reads it: bash shows no help."""
    if shell == "zsh":
        told = f':"{text.translate(_ZSH)}"' if text else ""
        return f'"{value.translate(_ZSH)}"{told}'
    return f"{value}\t{text}" if shell == "fish" and text else value
