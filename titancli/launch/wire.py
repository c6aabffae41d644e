"""One launcher's connection with another: messages as JSON objects, one a line.

Knows sockets that may end, fall silent, or be held by somebody who speaks something else. Does not know what the
messages mean (roll_call, peers).
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, TypeVar

_MOST_BYTES = 4 << 20
_SEND_S = 5.0
_PIECE_BYTES = 1 << 16

Message = dict[str, Any]
_Held = TypeVar("_Held", bound="Line | socket.socket")


class Line:
    """A connection; `is_gone` once its other end has closed it, broken it, or does not speak this.

    `why_gone` is what the network says where it was not the other end's doing.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(_SEND_S)
        self._held = b""
        self._inbox: list[Message] = []
        self.is_gone = False
        self.why_gone = ""

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    @property
    def here(self) -> str:
        """The address of this machine that the other end sees."""
        return str(self._socket.getsockname()[0]).removeprefix("::ffff:")

    @property
    def there(self) -> str:
        """The address of the other end; in words where it has broken the connection since."""
        try:
            return str(self._socket.getpeername()[0]).removeprefix("::ffff:")
        except OSError:
            return "an address that is gone again"

    def keep_alive(self, silence_s: float) -> None:
        """Counts the connection as gone when the other machine has not answered for so long.

        Linux then goes by that time alone (TCP_USER_TIMEOUT), and not by how many questions stayed unanswered.
        """
        # Many questions: on a link that loses a third of what is sent, three that stay unanswered are no sign of death.
        every_s = max(1, int(silence_s / 20))
        options = {"TCP_KEEPIDLE": every_s, "TCP_KEEPINTVL": every_s, "TCP_KEEPCNT": 3}
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))

    def send(self, message: Message) -> None:
        """Sends a message, or finds that nobody is there."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as trouble:
            self._lose(trouble)

    def read(self) -> list[Message]:
        """The messages that have come in; does not wait."""
        self._take_in()
        messages, self._inbox = self._inbox, []
        return messages

    def heard(self) -> bool:
        """Whether a message has come in that nobody has read; does not wait."""
        self._take_in()
        return bool(self._inbox)

    def wait(self, timeout_s: float) -> Message | None:
        """The next message; None where the other end is gone or says nothing in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._take_in()
            if self._inbox:
                return self._inbox.pop(0)
            left_s = deadline_s - time.monotonic()
            if self.is_gone or left_s <= 0:
                return None
            readable([self], left_s)

    def _take_in(self) -> None:
        """Reads what has come in, but no more in one go than a message may have: who sends for ever is not served."""
        for _ in range(_MOST_BYTES // _PIECE_BYTES + 1):
            if self.is_gone or not readable([self], 0.0):
                return
            try:
                piece = self._socket.recv(_PIECE_BYTES)
            except OSError as trouble:
                self._lose(trouble)
                return
            *whole, self._held = (self._held + piece).split(b"\n")
            try:
                messages = [json.loads(text) for text in whole]
            except (ValueError, RecursionError):
                self._lose(None)
                return
            told = [message for message in messages if isinstance(message, dict)]
            self._inbox += told
            if not piece or len(self._held) > _MOST_BYTES or len(told) < len(messages):
                self._lose(None)

    def close(self) -> None:
        """Ends the connection; what was sent still arrives."""
        self._socket.close()

    def _lose(self, trouble: OSError | None) -> None:
        self.is_gone = True
        if trouble is not None and not isinstance(trouble, ConnectionError):
            self.why_gone = (trouble.strerror or str(trouble)).lower()


def readable(lines: Sequence[_Held], timeout_s: float) -> list[_Held]:
    """Those of some connections and listeners that have something to read, waiting for the first."""
    # Not select, which ends with a launcher's 1,024th file: a large run has as many machines.
    watched, by_handle = select.poll(), {line.fileno(): line for line in lines}
    for handle in by_handle:
        watched.register(handle, select.POLLIN)
    return [by_handle[handle] for handle, _ in watched.poll(max(0.0, timeout_s) * 1000)]
