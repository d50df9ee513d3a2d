"""Atomic writes: the old file stays until the new one is complete.

A file is written beside its place, under a name of its own, and then moved. So two that write the same file do not mix,
and a full disk or a signal leaves the old one. A link is followed. A pipe, a device and ``/dev/stdout`` are written to,
not replaced, once everything is there.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from attendax import exits
from attendax.exits import Refusal

Place = str | os.PathLike[str]


@contextlib.contextmanager
def whole(path: Place) -> Iterator[IO[bytes]]:
    """A file to write to, and to seek in; when the block ends well, it is what ``path`` names.

    One that is replaced hands its permissions on.

    Raises:
        OSError: the disk is full, there is no such folder, or nothing may be written there; ``path`` is as it was.

    Example:
        >>> path = os.path.join(tempfile.mkdtemp(), "a.txt")
        >>> with whole(path) as file:
        ...     _ = file.write(b"a man")
        ...     os.path.exists(path)
        False
        >>> os.path.getsize(path)
        5
    """
    stream, target = is_stream(path), os.path.realpath(path)
    if not stream and os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    folder = tempfile.gettempdir() if stream else os.path.dirname(target)
    part = os.path.join(folder, f"{os.path.basename(target)[:50]}.{secrets.token_hex(8)}.part")
    exits.unfinished.add(part)
    try:
        with _closed(open(part, "x+b")) as file:
            yield file
            file.flush()
            if stream:
                file.seek(0)
                with _opened(path) as out:
                    shutil.copyfileobj(file, out)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.chmod(part, stat.S_IMODE(os.stat(target).st_mode))
                os.fsync(file.fileno())  # a disk over the network may say only now that it is full
        if not stream:
            os.replace(part, target)
    except OSError as error:
        if error.filename == part:  # the user does not know that name
            error.filename, error.filename2 = os.fspath(path), None
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
        exits.unfinished.discard(part)


def write(path: Place, content: str | bytes) -> None:
    """Write a whole file; text as UTF-8, with a question mark for what UTF-8 cannot hold.

    Raises:
        OSError: as ``whole``.
    """
    with whole(path) as file:
        file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)


def check(option: str, path: str, suffixes: tuple[str, ...] = (), wanted: str = "") -> None:
    """Refuse, before the work, a path that cannot be written. Streams may have any name.

    Args:
        option: which one named it.
        path: the file.
        suffixes: how its name may end.
        wanted: what to name instead, in words.

    Raises:
        Refusal: the name ends in none of them, there is no such folder, or the path is one.
    """
    if is_stream(path):
        return
    if suffixes and os.path.splitext(path)[1].lower() not in suffixes:
        raise Refusal(f"{option} {path}: name {wanted}")
    target = os.path.realpath(path)
    if os.path.isdir(target) or not os.path.isdir(os.path.dirname(target)):
        raise Refusal(f"{option} {path}: there is no such folder, or this is one")


def is_stream(path: Place) -> bool:
    """Tell whether a path names what is written to and cannot be replaced: a pipe, a device, an open descriptor.

    Example:
        >>> is_stream(os.devnull), is_stream("notes.txt")
        (True, False)
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or _descriptor(path) is not None


def _descriptor(path: Place) -> int | None:
    """The number of the descriptor that a path such as ``/dev/stdout`` leads to, also where it is that of a file."""
    name, descriptors = os.fspath(path), os.path.realpath("/dev/fd")
    while True:
        folder, last = os.path.split(name)
        if last.isdecimal() and os.path.realpath(folder) == descriptors:
            return int(last)
        if not os.path.islink(name):
            return None
        name = os.path.join(folder, os.readlink(name))


def _opened(path: Place) -> IO[bytes]:
    """A stream, to write to; a descriptor is shared, so that what was printed before stays before."""
    number = _descriptor(path)
    if number is None:
        return open(path, "wb")
    for printed in filter(None, (sys.stdout, sys.stderr)):
        printed.flush()
    return open(os.dup(number), "wb")


@contextlib.contextmanager
def _closed(file: Any) -> Iterator[Any]:
    """The file, closed; after an error, what a full disk says once more does not hide it."""
    try:
        yield file
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()
        raise
    file.close()
