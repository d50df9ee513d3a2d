"""``check`` of a function of the protocol of which a test states what users have described: it is judged as it is."""

from attendax import conformance
from attendax.conformance import Implementation, checking
from attendax.conformance.cases.how import How, drawn
from attendax.conformance.run.run import Telling
from attendax.conformance.worker.place import implement

STATED = "arrays", "backward", "means", "lacks"


def check(fn, **given):
    """The report; of a function of which nothing is stated, that of the public ``check``."""
    if not set(STATED) & given.keys():
        return conformance.check(fn, **given)
    asked = {name: given.pop(name) for name in How._fields if name in given}
    asked |= {"seed": drawn(asked.get("seed")), "sizes": dict(asked.get("sizes") or {})}
    how = How(**{"profile": "numbers"} | asked | {x: tuple(asked.get(x, ())) for x in ("require", "claims")}).checked()
    only, level, known = (given.pop(*x) for x in (("only", ()), ("level", "everything"), ("known_failures", None)))
    tell, keep = Telling(given.pop("progress", None)), isinstance(fn, Implementation)

    def make(how):
        return implement(fn, how=how, **given), None

    return checking.judged(make, how, only, level, known, tell, keep=keep)
