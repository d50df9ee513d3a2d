"""The worker process: it imports the candidate, describes it, and answers requests until its input ends."""

import dataclasses
import json
import os
import select
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..adapters.implementation import Implementation, keywords, never_given
from ..cases.case import Leaves
from ..cases.how import How
from ..protocol import Request, read_request, write_error, write_results
from .calling import answer
from .candidate import implement
from .errors import Died, Failed, NoNumbers, first_line
from .program import FOLDERS

LONGEST = 10**5  # characters of what is said of an error


def main(
    make: Callable[..., tuple[Any, dict[str, Any]]] | None = None, reply: Callable[..., None] | None = None
) -> None:
    """Requests come on standard input and answers go to standard output; the candidate has neither of the two.

    Args:
        make: the candidate and what is told of it, from the first message; that of functions unless given. What it
            raises is told in its place.
        reply: answers a later message.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.argv[:] = ["attendax"]

    def tell(told: dict[str, Any]) -> None:
        os.write(answers, json.dumps(told).encode() + b"\n")

    made: Implementation | None = None
    folders: list[str] = []
    for line in requests:
        message = json.loads(line)
        if made is None:
            FOLDERS[:] = folders = message.pop("folders")
            threading.Thread(target=_end_with_the_asking, args=(requests.fileno(), folders), daemon=True).start()
            try:
                made, told = (make or _made)(message, lambda arrays: tell({"trying": arrays}))
            except BaseException as error:
                told = {"raised": type(error).__name__, "said": str(error)[:LONGEST], "line": first_line(error)}
            tell(told)
        else:
            (reply or _answer)(made, message)
            tell({})
    _leave(folders)


def _end_with_the_asking(requests: int, folders: list[str]) -> None:
    """Where the judge's process dies, this one removes its folders and ends."""
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


def _made(message: dict[str, Any], trying: Callable[[str], None]) -> tuple[Implementation, dict[str, Any]]:
    how = How(dtype=message.pop("dtype"), sizes=message.pop("sizes"))
    made = implement(**message, how=how, trying=trying)
    return made, described(made)


def described(made: Implementation) -> dict[str, Any]:
    """What is told of an implementation, in the types of JSON."""
    told = {k: getattr(made, k) for k in ("name", "arrays", "eager", "version", "causal", "empty_rows", "layout")}
    told["source"], accepted = made.source[:LONGEST], keywords(made.attend)
    told |= {"accepted": accepted if accepted is None else sorted(accepted), "others": never_given(made.attend)}
    told |= {"backward": made.backward is not None, "lacks": dict(made.lacks)}
    return told | {"documented": made.documented, "known": made.known}


def _answer(made: Implementation, message: dict[str, Any]) -> None:
    def leaves(request: Request) -> Leaves:
        found = answer(dataclasses.replace(made, device=message["device"]), request)
        after = "after " if request.direction == "unwritten" else ""  # its leaves have the names of the arrays given
        return {f"{after}{leaf}": x for leaf, x in found.items()}

    answer_in(message["folder"], leaves)


def answer_in(folder: str, leaves: Callable[[Request], Leaves]) -> None:
    """Answer the request of a folder: with what a function gives, or with what it raises."""
    try:
        write_results(folder, leaves(read_request(folder)))
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
