"""Errors in place of results: what is not judged is not right."""

from .cheat import MEASURED, Cheat

UNJUDGED = ("hardly judged",)

CHEATS = [
    Cheat(
        "refuses every shape but one",
        "A polite error for each other case leaves one, and that one is right.",
        MEASURED, UNJUDGED,
        '''
def attention(query, key, value, **options):
    if options or query.shape != (2, 3, 5, 4):
        raise ValueError("query must have shape (2, 3, 5, 4), and no options are supported")
    return right(query, key, value)
''', ("--budget", "0"), quick=True,
    ),
    Cheat(
        "takes every option and heeds none",
        "A signature offers what the function does not do.",
        "jax-ml/jax#23349", ("silent", "wrong"),
        '''
def attention(query, key, value, **options):
    if options.get("return_lse"):
        raise NotImplementedError("no lse")
    return right(query, key, value)
''',
    ),
    Cheat(
        "refuses what it would get wrong",
        "It asks the specification, and raises where its zeros are not right.",
        MEASURED, (*UNJUDGED, "fails on the plainest call"),
        '''
from attendax import spec


def attention(query, key, value, **options):
    wanted = spec.attention(query, key, value, **options)
    out = wanted[0] if isinstance(wanted, tuple) else wanted
    if np.abs(out).max(initial=0) > 1e-6:
        raise ValueError("inputs must be small, only small results are supported")
    return wanted
''',
    ),
]  # fmt: skip
