"""Subjects: what is asked, a function of attention, one of two that are compared, or a model; here or in a process."""

import contextlib
import ctypes
import inspect
import json
import os
import queue
import shutil
import sys
import tempfile
import time
import warnings
import weakref
from typing import Any

import numpy as np

from ..adapters.implementation import Implementation
from ..cases.case import Inputs, Leaves
from ..cases.how import Left, forever
from ..frameworks import framework, needs
from ..protocol import Request, read_results, room_for, size_of, write_case
from .child import GRACE_SECONDS, Child, ended
from .errors import Died, Failed, NoNumbers, answered, first_line, text_of

WROTE = "wrote "  # the beginning of a leaf that names an array which the call wrote to
RAM_FOLDER = "/dev/shm"  # a file system in memory, if there is one
IMPORT_SECONDS = 60.0  # seconds that it has at least to start and to import
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4


def call(implementation: Implementation, inputs: Inputs, direction: str, wrote: list[str] | None = None) -> Leaves:
    """Call the implementation in a direction: NumPy arrays by name. Nothing else runs it.

    The names of the caller's arrays that it wrote to are added to ``wrote``. Raises as ``Subject.ask``.
    """
    request = asked(inputs, direction)._replace(optimized=implementation.optimized)
    found = subject_of(implementation).ask(request)
    if wrote is not None:
        wrote += [leaf.removeprefix(WROTE) for leaf in found if leaf.startswith(WROTE)]
    return {leaf.removeprefix("after "): x for leaf, x in found.items() if not leaf.startswith(WROTE)}


def subject_of(implementation: Implementation) -> "Subject":
    """The process that has the function; in this one, the function itself."""
    return implementation.attend if isinstance(implementation.attend, Subject) else Called(implementation)


def asked(inputs: Inputs, direction: str) -> Request:
    """A call as the candidate sees it: the inputs, and what the direction needs beyond them."""
    kinds = inputs.extra.get("constants", {})
    known = {k: x for k, x in (inputs.extra | inputs.options | inputs.arrays).items() if k in kinds}
    arrays, options = ({k: x for k, x in some.items() if k not in kinds} for some in (inputs.arrays, inputs.options))
    extra = dict(inputs.extra)
    if "cotangent" in extra:
        lse = {"lse": extra["lse_cotangent"]} if "lse_cotangent" in extra else {}
        extra["cotangents"] = {"out": extra["cotangent"]} | lse
    given = {name: extra[name] for name in needs(direction)}
    return Request(direction, arrays, options, given, kinds, known, str(inputs.arrays["query"].dtype))


def _numbers(leaf: str, x: Any) -> np.ndarray:
    """A copy: the function may write its next result to the same memory."""
    kind = getattr(getattr(x, "dtype", None), "kind", None)
    if kind is None:
        raise NoNumbers(leaf, f"{leaf} is of type {type(x).__name__}, expected an array")
    if kind not in "fViub":
        raise NoNumbers(leaf, f"{leaf} is {x.dtype}, expected real numbers")
    return np.array(x)


class Subject:
    """A subject in this process, which calls it: what it takes is not counted, and nothing ends it."""

    asked: Any = Request  # the type of what it is asked, a named tuple
    told: dict[str, Any]  # what is told of it, in the types of JSON, arrays and sets
    taken = 0.0  # seconds that its last call took, without those in which others had the cores
    slowest = starting = 0.0  # seconds of the longest call that was answered, and of the longest start

    def start(self) -> dict[str, Any]:
        """All that is told of it."""
        return self.told

    def answer(self, request: Any) -> Leaves:
        """One call."""
        raise NotImplementedError

    def ask(self, request: Any) -> Leaves:
        """The answer to a request.

        Raises NotImplementedError where it has nothing of the kind, Failed where it raised, died, or took too long, and
        NoNumbers where it gives something else.
        """
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                return self.answer(request)
            except (NotImplementedError, Failed, NoNumbers):
                raise
            except (Exception, SystemExit) as error:
                raise Failed.by(error) from error

    def allow(self, seconds: float, of_run: Left | None = None) -> None:
        """The next calls may take so long together, and none longer than is left of a run, as before unless given."""

    def cores(self) -> float:
        """CPU seconds of its own processes so far, as far as the system counts them."""
        return 0.0

    def waited(self) -> float:
        """Seconds in which its own processes could have run and others had the cores."""
        return 0.0

    def stop(self) -> None:
        """End its process, if it has one; the next call starts another."""

    def close(self) -> None:
        """End it for good."""


class Called(Subject):
    """A function in this process, called by the driver of its framework."""

    def __init__(self, implementation: Implementation) -> None:
        self.implementation, self.driver = implementation, framework(implementation.arrays)

    def answer(self, request: Request) -> Leaves:
        """One call, and the marks of the arrays that it wrote to."""
        made, driver, of_numpy = self.implementation, self.driver, self.implementation.arrays == "numpy"
        name, _, how = request.direction.partition(", ")
        function = getattr(driver, made.way(request.direction), None)
        if function is None or (of_numpy and "gradient" in name and not made.backward):
            raise NotImplementedError(f"no {name} of functions of {made.arrays} arrays")
        if made.arrays == "jax" and not request.optimized:
            function = driver.cheaply(function, request.arrays)
        given, attend = request.given | ({"how": how} if how else {}), made.attend
        if request.constants:
            attend = driver.closing_over(attend, request.constants, request.known)
        own = name in ("forward", "eager", *["gradient"] * of_numpy)  # in others the kit itself writes
        mutable = request.arrays | request.options | request.known if own else {}
        context = driver.wide() if request.dtype == "float64" else contextlib.nullcontext()
        try:
            with context, driver.placed(made.device), driver.watched(mutable) as written:
                if of_numpy and "gradient" in name and not made.foreign:  # a call that it refuses has no gradient
                    driver.forward(attend, request.arrays, request.options)
                found = function(attend, request.arrays, request.options, **given)
                marks = {f"{WROTE}{leaf}": np.array(True) for leaf in written()}
        except NotImplementedError as error:
            if not text_of(error).strip():
                raise Failed.by(error) from error
            raise
        except Exception as error:
            if driver.is_lack(error):
                raise NotImplementedError(first_line(error)) from error
            raise
        return {leaf: _numbers(leaf, x) for leaf, x in found.items()} | marks


class Worker(Subject):
    """The process that has a subject, for which it stands: only the kit calls it, by ``ask``."""

    __signature__: inspect.Signature  # of the function that it stands for, if it does
    backward: "Worker"  # itself, where that function has one

    def __init__(self, kind: str, candidate: dict[str, Any], first: float | None = None, room: int = 0) -> None:
        """``kind`` of subject, and what makes it there; seconds of each of the plainest calls, apart from the start.

        An answer may have ``room`` bytes, where that is more than what a request of its size is answered with.
        """
        self.candidate, self.first, self.room = candidate | {"subject": kind}, first, room
        self.trying = ""  # with which arrays it tried the plainest call last
        # Seconds that it may take for what is judged now, and what is left of them.
        self.limit = self.left = IMPORT_SECONDS
        self.of_run: Left = forever  # what has no answer when nothing is left of the run is not judged
        self._before = self._counted = 0.0, 0.0  # seconds, as ``cores`` and ``waited``: ended processes, this one
        bases = [RAM_FOLDER] * (os.path.isdir(RAM_FOLDER) and os.access(RAM_FOLDER, os.W_OK)) + [tempfile.gettempdir()]
        self.folders = [tempfile.mkdtemp(prefix=f"attendax-{os.getpid()}-", dir=base) for base in bases]
        self._children: list[Child] = []  # the process, if there is one; read also when this object is gone
        _hide()
        self._end = weakref.finalize(self, _ended, self.folders, self._children)

    @property
    def child(self) -> Child | None:
        """The process, if there is one."""
        return self._children[0] if self._children else None

    def __call__(self, *args: Any, **options: Any) -> Any:
        """It is asked by ``ask`` alone."""
        raise TypeError("check: the function is in another process, where only the kit calls it")

    def allow(self, seconds: float, of_run: Left | None = None) -> None:
        """The next calls may take so long together, and none longer than is left of a run, as before unless given."""
        self.limit = self.left = seconds
        self.of_run = of_run or self.of_run

    def start(self) -> dict[str, Any]:
        """Start it: it imports the candidate, and says what that is; raises Died where it does not."""
        start = time.monotonic()
        child = self.child or Child()
        self._children[:] = [child]
        told = self._ask(child, self.candidate | {"folders": self.folders}, max(self.left, IMPORT_SECONDS))
        self._count()
        self.starting = max(self.starting, time.monotonic() - start - self._counted[1])
        return told

    def ask(self, request: Any) -> Leaves:
        """The answer to a request; what it ends with is raised here as it was there."""
        if self.child is None and self.of_run() <= 0:
            raise Died("no time left", "not judged")
        if self.child is None and "raised" in (told := self.start()):
            raise Died(f"when it was loaded again it raised {told['raised']}")
        child, folder = self._children[0], ""
        try:
            folder = self._folder(size_of(request))
            write_case(folder, request._asdict())
            start, waited = time.monotonic(), child.waited()
            try:
                self._ask(child, {"folder": folder}, self.left)
            finally:
                self._count()
                others = max(child.waited() - waited, 0.0)  # 0: it has ended
                self.taken = max(time.monotonic() - start - others, 0.0)
                self.left -= self.taken
            self.slowest = max(self.slowest, self.taken)
            found = read_results(folder, max(room_for(request), self.room))
        except (OSError, ValueError) as error:
            self.stop()
            unusable = isinstance(error, OSError) and f"the folder of its request cannot be used: {error.strerror}"
            raise Died(unusable or f"answered what cannot be read: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return answered(found)

    def become(self, candidate: dict[str, Any], first: float | None) -> "Worker":
        """The worker with another function, which its process makes when it starts again."""
        self.candidate, self.first = candidate | {"subject": "function"}, first
        return self

    def _folder(self, size: int) -> str:
        """A new folder: in memory, if a request of that size and its answer fit."""
        for home in self.folders:
            os.makedirs(home, 0o700, exist_ok=True)  # somebody may have removed it
        home = next((x for x in self.folders if shutil.disk_usage(x).free > 16 * size + 2**24), self.folders[-1])
        return tempfile.mkdtemp(dir=home)

    def _ask(self, child: Child, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        limit = max(seconds, self.limit)
        with contextlib.suppress(OSError):  # it is gone, as an event says
            child.process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
        try:
            while "trying" in (told := self._told(child, seconds)):
                self.trying = str(told["trying"])
                if self.first is not None:
                    seconds = limit = self.first
        except (Died, queue.Empty) as error:
            self.stop()
            if isinstance(error, Died):
                raise
            if self.of_run() <= 0:
                raise Died("no time left", "not judged") from None
            raise Died(f"no answer in {limit:.3g} seconds", "timeout") from None
        return told

    def _told(self, child: Child, seconds: float) -> dict[str, Any]:
        """The next line that it answers."""
        event = child.event(seconds, self._left_of_run)
        if isinstance(event, bytes):
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(told := json.loads(event), dict):
                    return told
            raise Died("its process wrote to the pipe of the answers")
        with contextlib.suppress(queue.Empty):
            event = child.events.get(timeout=GRACE_SECONDS) if event is None else event
        words, how = child.last_words(), ended(event) if isinstance(event, int) else "closed its output"
        raise Died(f"its process {how}" + (f"; it said: {words}" if words else ""))

    def cores(self) -> float:
        """CPU seconds of its processes so far, as far as the system counts them."""
        return self._before[0] + self._counted[0]

    def waited(self) -> float:
        """Seconds in which its processes could have run and others had the cores."""
        return self._before[1] + self._counted[1]

    def _count(self) -> None:
        """Read both from the system: its process takes nothing between two calls, where they are asked for often."""
        for child in self._children:
            now = child.cores(), child.waited()
            self._counted = max(now[0], self._counted[0]), max(now[1], self._counted[1])  # it may have ended

    def _left_of_run(self) -> float:
        """Seconds of the run that are left, while the process runs."""
        self._count()
        return self.of_run()

    def stop(self) -> None:
        """End the process; the next call starts another."""
        self._count()
        for child in self._children:
            child.kill()
        self._children.clear()
        self._before, self._counted = (self.cores(), self.waited()), (0.0, 0.0)

    def close(self) -> None:
        """End it for good, and remove its folders."""
        self._end()
        self._children.clear()


def _ended(folders: list[str], children: list[Child]) -> None:
    try:
        for child in children:
            child.kill()
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        if _readable:
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, _readable.pop(), 0, 0, 0)


_readable: list[int] = []  # whether this process was readable before each worker that there is


def _hide() -> None:
    """Hide the memory of this process from others of the user, as long as there is a worker, where Linux runs."""
    if sys.platform.startswith("linux"):
        prctl = ctypes.CDLL(None).prctl
        _readable.append(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
