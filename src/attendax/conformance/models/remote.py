"""A model in a process of its own: it is described there, and what it computes comes as files."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..protocol import Subject
from ..worker.calling import Worker
from ..worker.errors import Died
from ..worker.place import error_of, path_in_other_process
from .blackbox import Model, Request
from .describing import describe

ROOM = 2**31  # bytes that a result may have: logits of a large vocabulary are large


class Remote(Worker):
    """The process that has a model."""

    def run(self, request: Request) -> np.ndarray:
        """Compute a request there."""
        found = self.ask(request)
        if set(found) != {"out"}:
            raise Died("answered what cannot be read: no out.npy")
        return found["out"]


def described_there(path: str, causal: bool | None, said: Mapping[str, Any]) -> Model:
    """Describe a model in a process of its own."""
    worker = Remote("model", {"path": path, "causal": causal, "said": dict(said)}, room=ROOM)
    try:
        told = worker.start()
        if "raised" in told:
            raise error_of(told, path)
        told |= {"known_tokens": np.array(told["known_tokens"], np.int32), "accepts": frozenset(told["accepts"])}
        return Model(run=worker.run, **told)
    except Died as died:
        worker.close()
        raise ValueError(f"check_model: {path}: when it was made: {died}") from died
    except BaseException:
        worker.close()
        raise


def place(apply: Any, said: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """The path by which another process makes the model, what is said there, and why it cannot be, if it cannot."""
    there, whys = dict(said), []

    def path_of(x: Any, what: str) -> str:
        path, why = path_in_other_process(x, what)
        whys.append(why)
        return path

    path = path_of(apply, "the model")
    if said.get("cache") and not all(isinstance(x, str) for x in said["cache"]):
        there["cache"] = [path_of(x, "a function of the cache") for x in said["cache"]]
    if callable(said.get("heads")):
        there["heads"] = path_of(said["heads"], "the function that reads the weights")
    try:
        json.dumps(there)
    except TypeError:
        whys.append("what is said of it are objects of this process")
    return path, there, next(filter(None, whys), "")


def worker_of(model: Model) -> Remote | None:
    """The process of a model, if it has one."""
    worker = getattr(model.run, "__self__", None)
    return worker if isinstance(worker, Remote) else None


def subject(message: dict[str, Any], trying: Any) -> Subject:
    """The model of a message."""
    model = describe(message["path"], message["causal"], message["said"])
    told = {f.name: getattr(model, f.name) for f in dataclasses.fields(model) if f.name != "run"}
    return Subject(Request, told, lambda request: {"out": model.run(request)})
