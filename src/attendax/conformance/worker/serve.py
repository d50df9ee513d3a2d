"""The worker process: it makes the subject, describes it, and answers requests until its input ends."""

import importlib
import json
import os
import select
import shutil
import sys
import threading
from typing import Any

from ..protocol import read_request, write_error, write_results
from .calling import Subject
from .errors import MAX_CHARS, Died, Failed, NoNumbers, first_line
from .foreign import FOLDERS

MADE_BY = {  # a kind of subject: the module whose ``subject`` makes one
    "function": "attendax.conformance.worker.place",
    "either": "attendax.conformance.against.remote",
    "model": "attendax.conformance.models.describing",
}


def main() -> None:
    """Requests come on standard input and answers go to standard output; the subject has neither of the two.

    The first message says what the subject is, and is answered with what is told of it, or what making it raised. A
    later one may name another subject.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.argv[:] = ["attendax"]

    def tell(told: dict[str, Any]) -> None:
        text = json.dumps(told, default=lambda x: x.tolist() if hasattr(x, "tolist") else sorted(x))
        os.write(answers, text.encode() + b"\n")

    threading.Thread(target=_end_with_the_asking, args=(requests.fileno(),), daemon=True).start()
    subject = Subject()
    for line in requests:
        message = json.loads(line)
        if "subject" not in message:
            _answer(subject, message["folder"])
            tell({})
            continue
        FOLDERS[:] = message.pop("folders", [])
        try:
            maker = importlib.import_module(MADE_BY[message.pop("subject")])
            subject = maker.subject(message, lambda arrays: tell({"trying": arrays}))
            told = subject.start()
        except BaseException as error:
            told = {"raised": type(error).__name__, "said": str(error)[:MAX_CHARS], "line": first_line(error)}
        tell(told)
    _leave()


def _end_with_the_asking(requests: int) -> None:
    """End with the judge's process, and remove the folders."""
    if not hasattr(select, "poll"):
        return
    asked = select.poll()
    asked.register(requests, 0)
    asked.poll()
    _leave()


def _leave() -> None:
    for folder in FOLDERS:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _answer(subject: Subject, folder: str) -> None:
    """Answer the request of a folder: with what the subject gives, or with what it raises."""
    try:
        leaves = subject.ask(read_request(folder, subject.asked))
        write_results(folder, leaves)
    except NotImplementedError as error:
        write_error(folder, "not offered", *map(str, error.args))
    except NoNumbers as error:
        write_error(folder, "no numbers", *error.args)
    except Died as died:
        write_error(folder, "died", died.said)
    except BaseException as error:
        failed = error if isinstance(error, Failed) else Failed.by(error)
        kind = "refusal" if failed.refusal else "failed"
        write_error(folder, kind, failed.said)
