"""A worker of a preparation: a process that never imports torch.

Knows how parts are asked for and answered over one connection. Does not know which parts there are, nor that there are
other workers (prepare_pool.py). It has one thread: there is a worker for every core.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from multiprocessing.connection import Connection

from engine.data.prepare_task import Progress, Task, Work, answer


def serve(connection: Connection) -> None:
    """Makes parts until nobody asks any more."""
    work: Work = connection.recv()
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:
            return
        connection.send(answer(work, task, partial(_tell, connection, task.number)))


def _tell(connection: Connection, number: int, text_bytes: int, tokens: int) -> None:
    connection.send(Progress(number=number, text_bytes=text_bytes, tokens=tokens))


def main() -> None:
    """Runs a worker over the connection that it was given."""
    from engine.parent import die_with

    # A Ctrl-C in the terminal reaches it too: it ends with the process that asks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(int(sys.argv[2]))
    with Connection(int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
