"""A subject: what a worker process has and is asked about. It is a function, one of two, or a model."""

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from ..cases.case import Leaves
from ..protocol import Request

MADE_BY = {  # a kind of subject: the module whose ``subject`` makes one
    "function": "attendax.conformance.worker.candidate",
    "either": "attendax.conformance.against.remote",
    "model": "attendax.conformance.models.remote",
}


class Subject(Protocol):
    """What the process answers with."""

    def told(self) -> dict[str, Any]:
        """What is told of it, in the types of JSON."""

    def answer(self, request: Request, device: str) -> Leaves:
        """One call of it."""


def made(kind: str, message: dict[str, Any], trying: Callable[[str], None]) -> Subject:
    """The subject that a message asks for; ``trying`` is told with which arrays a call is tried."""
    found: Subject = importlib.import_module(MADE_BY[kind]).subject(message, trying)
    return found
