"""The worker process: it makes the subject, describes it, and answers requests until its input ends."""

import importlib
import json
import os
import select
import shutil
import sys
import threading
from typing import Any, Protocol

from ..cases.case import Leaves
from ..protocol import Request, read_request, write_error, write_results
from .errors import LONGEST, Died, Failed, NoNumbers, first_line
from .program import FOLDERS

MADE_BY = {  # a kind of subject: the module whose ``subject`` makes one
    "function": "attendax.conformance.worker.candidate",
    "either": "attendax.conformance.against.remote",
    "model": "attendax.conformance.models.remote",
}


class Subject(Protocol):
    """A subject, with which the process answers."""

    def told(self) -> dict[str, Any]:
        """Tell of it, in the types of JSON."""

    def answer(self, request: Request, device: str) -> Leaves:
        """One call of it."""


def main() -> None:
    """Requests come on standard input and answers go to standard output; the subject has neither of the two.

    The first message says what the subject is, and is answered with what is told of it, or what making it raised.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.argv[:] = ["attendax"]

    def tell(told: dict[str, Any]) -> None:
        os.write(answers, json.dumps(told).encode() + b"\n")

    subject: Subject | None = None
    folders: list[str] = []
    for line in requests:
        message = json.loads(line)
        if subject is None:
            FOLDERS[:] = folders = message.pop("folders")
            threading.Thread(target=_end_with_the_asking, args=(requests.fileno(), folders), daemon=True).start()
            try:
                maker = importlib.import_module(MADE_BY[message.pop("subject")])
                made: Subject = maker.subject(message, lambda arrays: tell({"trying": arrays}))
                subject, told = made, made.told()
            except BaseException as error:
                told = {"raised": type(error).__name__, "said": str(error)[:LONGEST], "line": first_line(error)}
            tell(told)
        else:
            _answer(subject, message)
            tell({})
    _leave(folders)


def _end_with_the_asking(requests: int, folders: list[str]) -> None:
    """End with the judge's process, and remove the folders."""
    if not hasattr(select, "poll"):
        return
    asked = select.poll()
    asked.register(requests, 0)
    asked.poll()
    _leave(folders)


def _leave(folders: list[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _answer(subject: Subject, message: dict[str, Any]) -> None:
    """Answer the request of a folder: with what the subject gives, or with what it raises."""
    folder = message["folder"]
    try:
        found = subject.answer(read_request(folder), message["device"])
        write_results(folder, found)
    except NotImplementedError as error:
        write_error(folder, "not offered", *map(str, error.args))
    except NoNumbers as error:
        write_error(folder, "no numbers", *error.args)
    except Died as died:
        write_error(folder, "died", died.said)
    except BaseException as error:
        failed = error if isinstance(error, Failed) else Failed.by(error)
        kind = "refusal" if failed.refusal else "failed"
        write_error(folder, kind, failed.said, failed.text[:LONGEST], failed.names_nothing)
