"""Functions that are right until a scale is given; then they end in some way, or do something odd."""

import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np


def right(query, key, value, *, scale=None):
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def exits_with_0():
    sys.exit(0)


def ends_with_0():
    os._exit(0)


def ends_with_1():
    os._exit(1)


def ends_in_a_thread():
    threading.Thread(target=os._exit, args=(0,)).start()
    time.sleep(100)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def reads_at_0():
    print("a pointer of 0", file=sys.stderr, flush=True)
    ctypes.string_at(0)


def hangs():
    time.sleep(1000)


def prints_for_ever():
    while True:
        print("x" * 1000)


def prints_much():
    for _ in range(2000):
        print("x" * 1000)


def closes_everything():
    os.closerange(0, 100)
    time.sleep(1000)


def leaves_children():
    """Four processes that hold its pipes; the first of them has ended."""
    for _ in range(2):
        os.fork()
    if os.getpid() == os.getpgid(0):
        os._exit(3)
    time.sleep(1000)


def has_no_end():
    has_no_end()


def has_no_memory():
    resource.setrlimit(resource.RLIMIT_AS, (2**20, 2**20))
    np.zeros(2**28)


def removes_its_folder():
    """And that of every request to come."""
    frame = sys._getframe()
    while not isinstance(frame.f_locals.get("folder"), str):
        frame = frame.f_back
    shutil.rmtree(os.path.dirname(frame.f_locals["folder"]))


def answers_junk():
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:") and int(number) > 2:
                os.write(int(number), b"{'ok'\n")
        except OSError:
            continue
    time.sleep(1000)


def written(file, content):
    """A file beside the arrays that it was given, in place of its result."""
    import attendax.conformance.protocol as protocol

    def write_results(folder, leaves):
        path = Path(folder, file)
        if content == "a pipe":
            os.mkfifo(path)
        elif content == "a link":
            path.symlink_to("/etc/passwd")
        else:
            path.write_bytes(content)

    sys.modules["attendax.conformance.worker.serve"].write_results = write_results
    assert protocol.write_results is not write_results


def numbers(x):
    import io

    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


OBJECTS = numbers(np.array([print], object)[:0])
ODD = {
    "gives a torn file": lambda: written("out.npy", numbers(np.zeros((2, 3, 5, 4)))[:-1]),
    "gives text": lambda: written("out.npy", b"out"),
    "gives objects": lambda: written("out.npy", OBJECTS),
    "gives a pipe": lambda: written("out.npy", "a pipe"),
    "gives a link": lambda: written("out.npy", "a link"),
    "gives an unknown error": lambda: written("error.json", json.dumps({"kind": "none", "said": []}).encode()),
    "gives too much": lambda: written("out.npy", numbers(np.zeros(2**19))),
}


def way(end):
    def attend(query, key, value, *, scale=None):
        if scale is not None:
            end()
        return right(query, key, value, scale=scale)

    return attend


WAYS = (
    exits_with_0, ends_with_0, ends_with_1, ends_in_a_thread, is_killed, reads_at_0, hangs, prints_for_ever,
    prints_much, closes_everything, leaves_children, has_no_end, has_no_memory, answers_junk,
    removes_its_folder,
)  # fmt: skip
for end in WAYS:
    vars()[f"it_{end.__name__}"] = way(end)
for name, end in ODD.items():
    vars()[f"it_{name.replace(' ', '_')}"] = way(end)


def dies_at_width_1(query, key, value, *, scale=None):
    """It is killed by numbers that nobody asks for before it is judged."""
    if query.shape[-1] == 1:
        is_killed()
    return right(query, key, value, scale=scale)


def dies(query, key, value):
    os._exit(0)
