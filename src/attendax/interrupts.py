"""Ctrl-C at the command line: it ends the process at once, with the status that a shell gives, and without a word.

Not by KeyboardInterrupt, for two reasons. XLA compiles in threads of its own, which no exception stops: an interpreter
that ends under them crashes (jax 0.10: SIGSEGV in ``CompileAndLoad``). And an exception raised while one of JAX's
callbacks of the garbage collector runs is printed and lost. A command that has to clean up asks for it all the same.
"""

import contextlib
import os
import signal
from types import FrameType

STATUS = 130  # 128 + SIGINT
unfinished: set[str] = set()  # files that are being written: they go when the process does


def end_at_once() -> None:
    """From now on Ctrl-C ends the process; not where it is ignored, as under ``nohup``."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_instead() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, where ``end_at_once`` had been called."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    for path in unfinished:
        with contextlib.suppress(OSError):
            os.unlink(path)
    os._exit(STATUS)
