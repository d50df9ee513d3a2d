"""Every way of running a model gives the same numbers."""

from functools import partial

from .blackbox import Model
from .equality import same
from .law import Law
from .padding import padded_request
from .request import Request
from .trial import Found, Trial

SLACK = 32.0  # float64 beside float32 is off by all the rounding there is, not by what differs between two orders
USUAL = "one of the two drops a mask or an option, or runs another formula"


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    found = [Law("ways", "ways: again", "the same call twice", partial(_way, way="", again=True))]
    for way in model.ways:
        found.append(Law("ways", f"ways: {way}", f"{way} as the plain way", partial(_way, way=way)))
        about = f"{way} as the plain way, beside padding"
        found.append(Law("ways", f"ways: {way}, padded", about, partial(_padded, way=way), ("right padding",)))
    return found


def _way(trial: Trial, way: str, again: bool = False) -> Found:
    length = trial.model.lengths((17,))[-1]
    tokens = trial.texts(2, length)
    one = Request(tokens)
    other = one._replace(room=1) if again else one._replace(way=way)  # room asks nothing of a call without a cache
    places = [((b, t), (b, t)) for b in range(2) for t in range(length)]
    said = "the same call again gives other results" if again else f"{way} gives other results"
    usual = "dropout that is on, or a state that a call changes" if again else USUAL
    return same(trial, one, other, places, said, usual, slack=1 if again else SLACK)


def _padded(trial: Trial, way: str) -> Found:
    request, mask = padded_request(trial, "right", (9, 5, 1, 7))
    places = [((b, t), (b, t)) for b in range(len(mask)) for t in range(mask.shape[1]) if mask[b, t]]
    said = f"{way} gives other results beside padding"
    return same(trial, request, request._replace(way=way), places, said, USUAL, slack=SLACK)
