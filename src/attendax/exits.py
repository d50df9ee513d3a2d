"""The end of a command: its exit statuses, the error that says what the user has to change, and signals.

Ctrl-C and SIGTERM end the process at once and silently, with a shell's status. Not by KeyboardInterrupt, for two
reasons. XLA compiles in threads of its own, which no exception stops: an interpreter that ends under them crashes (jax
0.10: SIGSEGV in ``CompileAndLoad``). And an exception raised while one of JAX's callbacks of the garbage collector runs
is printed and lost. A command that has to clean up asks for it all the same.
"""

import contextlib
import os
import signal
from types import FrameType
from typing import Any

FAILED, REFUSED, PIPE_CLOSED = 1, 2, 141  # the last is what a shell gives
STATUS = 130  # 128 + SIGINT
UNTOUCHED: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if hasattr(signal, "SIGHUP"):  # the terminal is closed
    UNTOUCHED[signal.SIGHUP] = signal.SIG_DFL
STATUSES = {128 + number for number in UNTOUCHED}
unfinished: set[str] = set()  # files that are being written: they go when the process does


class Refusal(Exception):
    """A thing that the user has to change: printed on one line, no traceback."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, where a command cleans up: it takes the way of Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


def end_at_once() -> None:
    """Let these signals end the process from now on; not one that is ignored, as under ``nohup``."""
    for number, handler in UNTOUCHED.items():
        if signal.getsignal(number) in (handler, _raise):
            signal.signal(number, _end)


def raise_instead() -> None:
    """Undo ``end_at_once``: from now on Ctrl-C raises KeyboardInterrupt, and the others Terminated."""
    for number in UNTOUCHED:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def _end(number: int, frame: FrameType | None) -> None:
    for path in tuple(unfinished):
        with contextlib.suppress(OSError):
            os.unlink(path)
    os._exit(128 + number)
