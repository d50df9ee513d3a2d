"""One process of a worker: what it answers and how it ends, as events; and in words."""

import contextlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

MOST_LINE_BYTES = 2**20  # bytes of a line that is answered
KEPT_BYTES = 4096  # bytes of what it printed last
START = """import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from attendax.conformance.worker import serve
serve.main()"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")  # of a terminal
CONTROL = re.compile(r"[^\n\t\r\x20-\x7e\xa0-\U0010ffff]")
NAMES_ERROR = re.compile(r"(Uncaught )?\w*(Error|Exception)\b|error: |thread .* panicked", re.IGNORECASE)
PATIENCE, WORTH = 9, 0.05  # times a limit that a busy machine may add to it, and the seconds that are added at least
POLL_SECONDS = 0.25  # seconds on the clock after which it is asked again whether the time of a run is over
GRACE_SECONDS = 1.0  # seconds in which a process ends that has closed its output
# Threads of OpenMP sleep while they wait: on a busy machine they would spend most of the CPU seconds of a run.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
FOUND_THERE: list[str] = []  # folders in which the other process alone looks for modules
POSIX = os.name == "posix"


class Child:
    """One process. Its answers and its end come as events: a line, None (its output is closed), a status."""

    def __init__(self) -> None:
        own: dict[str, Any] = {"start_new_session": True} if POSIX else {}
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, json.dumps([*FOUND_THERE, *sys.path])], bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=WAITING | os.environ, **own,
        )  # fmt: skip
        self.events: queue.SimpleQueue[bytes | int | None] = queue.SimpleQueue()
        self.printed = b""
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self._drain, self._listen, self._wait)]
        for thread in self.threads:
            thread.start()

    def _drain(self) -> None:
        with self.process.stderr as stream:  # type: ignore[union-attr]
            while some := os.read(stream.fileno(), 2**16):
                self.printed = (self.printed + some)[-KEPT_BYTES:]

    def _listen(self) -> None:
        with self.process.stdout as stream, open(stream.fileno(), "rb", closefd=False) as lines:  # type: ignore[union-attr]
            while line := lines.readline(MOST_LINE_BYTES):
                self.events.put(line)
        self.events.put(None)

    def _wait(self) -> None:
        if POSIX:  # what it has started goes with it, before its number is free for another process
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            end_group(self.process)
        status = self.process.wait()
        self.threads[1].join(GRACE_SECONDS)  # what it answered comes before its end
        self.events.put(status)

    def waited(self) -> float:
        """Seconds in which it could have run and others had the cores; 0 where the system does not count them."""
        return waited_by(self.process.pid)

    def cores(self) -> float:
        """CPU seconds that it took, with those of processes that it waited for; 0 where the system does not say."""
        try:
            with open(f"/proc/{self.process.pid}/stat") as counted:
                fields = counted.read().rpartition(")")[2].split()
            return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):
            return 0.0

    def event(self, seconds: float, left: Callable[[], float] = lambda: math.inf) -> "bytes | int | None":
        """The next event, within seconds. Those in which others had the cores do not count, up to ``PATIENCE`` times.

        Nor is it waited for when no seconds are ``left``. Raises ``queue.Empty`` if none comes.
        """
        before, given, rest = self.waited(), 0.0, seconds
        while True:
            step = max(0.0, min(rest, left(), POLL_SECONDS))
            try:
                return self.events.get(timeout=step)
            except queue.Empty:
                if left() <= 0:
                    raise
                rest -= step
                if rest <= 0:
                    rest = min(self.waited() - before, PATIENCE * seconds) - given
                    if rest < WORTH:
                        raise
                    given += rest

    def kill(self) -> None:
        """End it, and what it has started; the thread that reads a stream of it closes that stream at its end."""
        if self.process.returncode is None:
            end_group(self.process)
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        for thread in reversed(self.threads):
            thread.join(GRACE_SECONDS)

    def last_words(self) -> str:
        """The end of what it printed, on one line."""
        self.threads[0].join(GRACE_SECONDS / 4)
        return last_lines(self.printed)


def waited_by(process: "int | str") -> float:
    """Seconds in which threads of a process, "self" or a number, could have run and others had the cores.

    Those of all threads are added up. It is 0 if the system does not count them.
    """
    seconds = 0.0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{process}/task/{thread}/schedstat") as counted,
            ):
                seconds += int(counted.read().split()[1]) * 1e-9
    return seconds


def end_group(process: "subprocess.Popen[Any]") -> None:
    """End a process that has a session of its own, and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if POSIX:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def ended(status: int) -> str:
    """The end of a process in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}" + ", as the system does when memory runs out" * (name == "SIGKILL")


def last_lines(printed: bytes) -> str:
    """Three lines of what was printed, on one line: the last, or from an error on, which some runtimes print first."""
    text = CONTROL.sub("", ESCAPES.sub("", printed.decode("utf-8", "replace")))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = next((k for k, line in enumerate(lines) if NAMES_ERROR.match(line)), len(lines))
    if named < len(lines) - 3:
        return " / ".join(lines[named : named + 3])[:300]
    return " / ".join(lines[-3:])[-300:]
