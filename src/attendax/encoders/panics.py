"""Calls of the library ``tokenizers``, which is Rust: where it panics, a ValueError, and nothing on standard error.

A panic is written to standard error by Rust itself, in up to a hundred lines, before Python hears of it. The error
that is raised then is not an ``Exception``.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator

_one_at_a_time = threading.Lock()  # the descriptor is the process's


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Run the block; a panic in it is a ValueError with the words of the panic.

    Lines that are written to standard error meanwhile appear afterwards, except those of a panic.

    Raises:
        ValueError: the block panicked.
    """
    with _one_at_a_time, _standard_error_held() as held:
        try:
            yield
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            held.clear()
            raise ValueError(str(error)) from None


@contextlib.contextmanager
def _standard_error_held() -> Iterator[list[int]]:
    """Hold back lines on standard error; hand them on to the descriptors in the list, none where it is closed."""
    try:
        before = os.dup(2)
    except OSError:
        yield []
        return
    held = _anonymous_file()
    os.dup2(held, 2)
    to = [before]
    try:
        yield to
    finally:
        os.dup2(before, 2)
        size = os.lseek(held, 0, os.SEEK_END)
        for descriptor in to if size else ():
            with contextlib.suppress(OSError):
                os.write(descriptor, os.pread(held, size, 0))
        os.close(held)
        os.close(before)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stderr")
    descriptor, name = tempfile.mkstemp()
    os.unlink(name)
    return descriptor
