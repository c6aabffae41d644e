"""Questions on a terminal: a menu drawn where the cursor is, keys read, and the answer left on one line.

Knows prompt_toolkit through questionary, and keys. Does not know what is asked, nor what a menu makes of a key (menu).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.errors import EXIT_TERMINATED
from titancli import report
from titancli.init import menu as menus
from titancli.init.menu import BACK, QUIT, Menu, Picking

if TYPE_CHECKING:
    from prompt_toolkit import Application
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.output import Output

_LABEL_WIDTH = 16


def can_ask() -> bool:
    """Whether somebody can be asked: keys come from a terminal, and the cursor can be moved on it."""
    return sys.stdin.isatty() and report.is_screen(sys.stdout)


def ask(menu: Menu) -> str:
    """What is chosen or typed, or BACK; KeyboardInterrupt for Ctrl-C, Ctrl-D and `q`.

    SystemExit where it is told to end, or the terminal is gone.
    """
    import questionary

    try:
        answer = questionary.Question(_application(menu)).unsafe_ask()
    except EOFError:
        raise KeyboardInterrupt from None
    except OSError:
        # Nobody sees it any more: the terminal is gone, as the signal that says so is about to tell.
        report.lose(sys.stdout)
        raise SystemExit(EXIT_TERMINATED) from None
    if answer == QUIT:
        raise KeyboardInterrupt
    return str(answer)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on a screen what is being done, until it is."""
    stands = report.is_screen(sys.stdout)
    if stands:
        sys.stdout.write(f"{what} ...")
        sys.stdout.flush()
    try:
        yield
    finally:
        if stands:
            # From the start of the line, with the ^C that a terminal shows there.
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()


def say_answer(label: str, answer: str) -> None:
    """The line that stays of a question."""
    report.say(f"{label:<{_LABEL_WIDTH}} {answer}"[: report.width_of(sys.stdout)])


def _application(menu: Menu) -> Application[str]:
    """One menu, drawn in place and gone when it is answered."""
    from prompt_toolkit import Application
    from prompt_toolkit.input import create_input
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.keys import Keys
    from prompt_toolkit.layout import FormattedTextControl, Layout, Window
    from prompt_toolkit.output import ColorDepth

    picking, keys, output = menus.opened(menu), KeyBindings(), _output()

    def fragments() -> StyleAndTextTuples:
        size = output.get_size()
        lines = menus.drawn(picking, columns=size.columns, lines=size.rows)
        return [(style, f"{text}\n") for style, text in lines]

    def turn(into: Picking) -> None:
        nonlocal picking
        picking = into

    def leave(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    for key in ("c-c", "c-d", Keys.SIGINT):
        keys.add(key)(leave)
    for key, by in (("up", -1), ("c-p", -1), ("s-tab", -1), ("down", 1), ("c-n", 1), ("tab", 1)):
        keys.add(key)(lambda _, by=by: turn(menus.moved(picking, by)))
    for key in ("enter", "c-j"):
        keys.add(key)(lambda event: event.app.exit(result=menus.entered(picking)))
    for key in ("backspace", "c-h"):
        keys.add(key)(lambda _: turn(menus.erased(picking)))
    keys.add("c-z")(lambda event: event.app.suspend_to_background())
    if menu.has_back:
        keys.add("c-b")(lambda event: event.app.exit(result=BACK))

    @keys.add(Keys.Any)
    def _(event: KeyPressEvent) -> None:
        # Of several lines that are pasted at once the first answers.
        letters = "".join(event.data.strip("\r\n").splitlines()[:1])
        if menus.quits(picking, letters):
            leave(event)
        elif letters.isprintable():
            turn(menus.typed(picking, letters))

    application: Application[str] = Application(
        layout=Layout(Window(FormattedTextControl(fragments, show_cursor=False), always_hide_cursor=True)),
        key_bindings=keys,
        input=create_input(sys.stdin),
        output=output,
        erase_when_done=True,
        color_depth=None if report.takes_colour(sys.stdout) else ColorDepth.DEPTH_1_BIT,
        include_default_pygments_style=False,
    )
    application.pre_run_callables.append(lambda: _end_when_told(application))
    return application


def _end_when_told(application: Application[str]) -> None:
    """SIGTERM and SIGHUP end it with the terminal as it was; so does what goes wrong while it is drawn."""
    import asyncio

    def leave(why: BaseException) -> None:
        if application.is_running and not application.is_done:
            application.exit(exception=why)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave, SystemExit(EXIT_TERMINATED))
    loop.set_exception_handler(lambda _, told: leave(told.get("exception") or RuntimeError(told["message"])))


def _output() -> Output:
    """The terminal, without asking it where its cursor is: not every one answers, and nothing here needs it."""
    from prompt_toolkit.output.vt100 import Vt100_Output

    output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
    output.enable_cpr = False
    return output
