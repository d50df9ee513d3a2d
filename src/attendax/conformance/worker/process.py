"""The worker process, as the judge sees it: started, called with a time limit, and started again after it died."""

import contextlib
import ctypes
import json
import math
import os
import queue
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..adapters.implementation import signature
from ..cases.case import Leaves
from ..protocol import Request, read_results, write_request
from .child import GRACE, Child, ended
from .errors import Died, Failed, NoNumbers

MEMORY = "/dev/shm"  # a file system in memory, where there is one
IMPORT = 60.0  # seconds that it has at least to start and to import
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4


class Worker:
    """The process that has the candidate."""

    def __init__(self, kind: str, candidate: dict[str, Any], first: float | None = None) -> None:
        """``kind`` of subject, and what makes it there; seconds of each of the plainest calls, apart from the start."""
        self.subject, self.candidate, self.first = kind, candidate, first
        self.trying = ""  # with which arrays it tried the plainest call last
        self.taken = 0.0  # seconds that its last call took, without those in which others had the cores
        self.slowest = self.starting = 0.0  # seconds of the longest call that was answered, and of the longest start
        self.limit = self.left = IMPORT  # seconds that it may take for what is judged now, and what is left of them
        self.until = math.inf  # the end of the run, of ``time.monotonic``: what has no answer then is not judged
        self._cores = 0.0  # of processes that have ended
        self.child: Child | None = None
        bases = [MEMORY] * (os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK)) + [tempfile.gettempdir()]
        self.folders = [tempfile.mkdtemp(prefix=f"attendax-{os.getpid()}-", dir=base) for base in bases]
        self._children: list[Child] = []  # the same, for when this object is gone
        private = _unreadable()
        private.__enter__()
        self._end = weakref.finalize(self, _ended, self.folders, self._children, private)

    def allow(self, seconds: float) -> None:
        """The next calls may take so long together."""
        self.limit = self.left = seconds

    def start(self) -> dict[str, Any]:
        """Start it: it imports the candidate, and says what that is; raises Died where it does not."""
        self.child, start = Child(), time.monotonic()
        self._children[:] = [self.child]
        message = self.candidate | {"subject": self.subject, "folders": self.folders}
        told = self._ask(message, max(self.left, IMPORT))
        self.starting = max(self.starting, time.monotonic() - start - self.child.waited())
        return told

    def ask(self, request: Request, device: str = "", room: int = 0) -> Leaves:
        """The answer to a request; what it ends with is raised here as it was there.

        It may have ``room`` bytes, where that is more than what a request of its size is answered with.
        """
        if self.child is None and time.monotonic() >= self.until:
            raise Died("no time left", "not judged")
        if self.child is None and "raised" in (told := self.start()):
            raise Died(f"when it was {'started' if self.first else 'imported'} again it raised {told['raised']}")
        child, folder = self.child, ""
        assert child is not None
        try:
            folder = self._folder(request)
            most = write_request(folder, request)
            start, waited = time.monotonic(), child.waited()
            try:
                self._ask({"folder": folder, "device": device}, self.left)
            finally:
                self.taken = time.monotonic() - start - max(child.waited() - waited, 0.0)  # 0: it has ended
                self.left -= self.taken
            self.slowest = max(self.slowest, self.taken)
            found = read_results(folder, max(most, room))
        except ValueError as error:
            self.stop()
            raise Died(f"answered what cannot be read: {error}") from error
        except OSError as error:
            self.stop()
            raise Died(f"the folder of its request cannot be used: {error.strerror}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return answered(found)

    def _folder(self, request: Request) -> str:
        """A new folder: in memory, where there is room for the request and its answer."""
        size = sum(x.nbytes for x in [*request.arrays.values(), *request.known.values()])
        for home in self.folders:
            os.makedirs(home, 0o700, exist_ok=True)  # somebody may have removed it
        home = next((x for x in self.folders if shutil.disk_usage(x).free > 16 * size + 2**24), self.folders[-1])
        return tempfile.mkdtemp(dir=home)

    def _ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        child, limit = self.child, max(seconds, self.limit)
        assert child is not None
        with contextlib.suppress(OSError):  # it is gone, as an event says
            child.process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
        try:
            while True:
                event = child.event(seconds, self.until)
                if not isinstance(event, bytes):
                    raise self._death(event)
                try:
                    told = json.loads(event)
                except (ValueError, RecursionError):
                    told = None
                if not isinstance(told, dict):
                    raise Died("its process wrote to the pipe of the answers")
                if "trying" not in told:
                    return told
                self.trying = str(told["trying"])
                if self.first is not None:
                    seconds = limit = self.first
        except queue.Empty:
            self.stop()
            if time.monotonic() >= self.until:
                raise Died("no time left", "not judged") from None
            raise Died(f"no answer in {limit:.3g} seconds", "timeout") from None
        except Died:
            self.stop()
            raise

    def _death(self, event: int | None) -> Died:
        child, how = self.child, "its process closed its output"
        assert child is not None
        if event is None:
            with contextlib.suppress(queue.Empty):
                event = child.events.get(timeout=GRACE)  # type: ignore[assignment]
        if isinstance(event, int):
            how = f"its process {ended(event)}"
        words = child.last_words()
        return Died(how + (f"; it said: {words}" if words else ""))

    def cores(self) -> float:
        """CPU seconds of its processes so far, as far as the system counts them."""
        return self._cores + (self.child.cores() if self.child else 0.0)

    def stop(self) -> None:
        """End the process; the next call starts another."""
        if self.child is not None:
            self._cores += self.child.cores()
            self.child.kill()
        self.child = None
        self._children.clear()

    def close(self) -> None:
        """End it for good, and remove its folders."""
        self._end()
        self.child = None


class Remote:
    """Stands for a function that another process has; its signature names the keywords of the function."""

    def __init__(self, worker: Worker, accepted: list[str] | None, others: list[str], *, backward: bool) -> None:
        self.worker, self.__signature__ = worker, signature(accepted, others)
        if backward:
            self.backward: Callable[..., Any] = self

    def __call__(self, *args: Any, **options: Any) -> Any:
        """It is asked by ``ask`` alone."""
        raise TypeError("check: the function is in another process, where only the kit calls it")

    def ask(self, request: Request, device: str) -> Leaves:
        """One call; what it ends with is raised here as it would be there."""
        found = self.worker.ask(request, device)
        return {leaf.removeprefix("after "): x for leaf, x in found.items()}


def answered(found: Leaves | tuple[str, list[Any]]) -> Leaves:
    """The leaves; an error is raised here as it was there."""
    if isinstance(found, dict):
        return found
    kind, said = found
    words = [str(x) for x in said[:2]] + [""] * 2
    if kind == "not offered":
        raise NotImplementedError(words[0])
    if kind == "no numbers":
        raise NoNumbers(*words[:2])
    if kind == "died":
        raise Died(words[0])
    raise Failed(words[0], words[1], kind == "refusal", bool(said[2:3] and said[2] is True))


def _ended(folders: list[str], children: list[Child], private: contextlib.AbstractContextManager[None]) -> None:
    try:
        for child in children:
            child.kill()
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        private.__exit__(None, None, None)


_workers = [0, 1]  # how many there are, and whether this process was readable before the first


@contextlib.contextmanager
def _unreadable() -> Any:
    """Hide the memory of this process from others of the user, as long as there is a worker, where Linux runs."""
    if not sys.platform.startswith("linux"):
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    if not _workers[0]:
        _workers[1] = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    _workers[0] += 1
    try:
        yield
    finally:
        _workers[0] -= 1
        if not _workers[0]:
            prctl(PR_SET_DUMPABLE, _workers[1], 0, 0, 0)
