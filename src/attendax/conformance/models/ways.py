"""Every way of running a model gives the same numbers; so does a draw of dropout again, and the mean of draws is right.

The mean is asked of one layer of attention alone, whose results are linear in the weights that are dropped. Elsewhere
dropout stands before something that is not linear, and the mean of draws is not the result without it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases.case import GRADIENT
from ..judge.verdicts import Finding, Verdict
from .blackbox import Model, Request
from .padding import padded_request
from .trial import FINE, SLACK, Evidence, Found, Laws, Trial, beside_rounding, distance, same, silent

AGAIN = "ways: again"
USUAL = "one of the two drops a mask or an option, or runs another formula"
TRAINED = ("training mode", "gradient checkpointing of layers")  # without dropout, as far as its rates are found
LENGTH = 33  # of texts for dropout
DRAWS = 64
SIGMAS = 6.0  # standard errors that the mean of draws may be off: by chance it is once in 5e8
PADDED = "{} as the plain way, beside padding"
NEEDS = ("gradient", "right padding")
laws = Laws("ways")


def _that_give(asked: str, **given: Any) -> Callable[[Model], dict[str, Any]]:
    """The ways of a model of which something is asked, as arguments, with others that are given."""
    return lambda model: {way: {"way": way, "asked": asked} | given for way, of in model.ways.items() if asked in of}


@laws.ask(AGAIN, "the same call twice")
def _again(trial: Trial) -> Found:
    one = Request(trial.texts(2, trial.model.lengths((17,))[-1]))
    again = one._replace(room=1)  # room asks nothing of a call without a cache
    usual = "dropout that is on, or a state that a call changes"
    return same(trial, one, again, "the same call again gives other results", usual)


@laws.ask("ways: {}, gradient, padded", PADDED, *NEEDS, of=_that_give("gradient", padded=True), level=GRADIENT)
@laws.ask("ways: {}, gradient", "{} as the plain way", "gradient", of=_that_give("gradient"), level=GRADIENT)
@laws.ask("ways: {}, padded", PADDED, "right padding", of=_that_give("results", padded=True))
@laws.ask("ways: {}", "{} as the plain way", of=_that_give("results"))
def _way(trial: Trial, way: str, asked: str, padded: bool = False) -> Found:
    one = Request(trial.texts(2, trial.model.lengths((17,))[-1]))
    real = np.ones(one.tokens.shape, bool)
    if padded:
        one, real = padded_request(trial, "right", (9, 5, 1, 7))
    one = one._replace(weights=real.astype(np.float32)) if asked == "gradient" else one
    other = one._replace(way=way)
    what = "another gradient" if asked == "gradient" else "other results"
    said = f"{way} gives {what}{' beside padding' * padded}"
    found = same(trial, one, other, said, USUAL, real, SLACK)
    if found.finding.verdict.fails and way in TRAINED:
        again = same(trial, other, other._replace(room=1), said, USUAL, real, SLACK)
        if again.finding.verdict.fails:
            raise NotImplementedError("in training it still draws: its rate of dropout was not found")
    return found


def _text(trial: Trial) -> np.ndarray:
    return trial.texts(2, trial.model.lengths((LENGTH,))[0])


def drawn(tokens: np.ndarray, seed: int) -> Request:
    """A request with dropout."""
    return Request(tokens, {"seed": np.array(seed, np.int32)})


@laws.ask("dropout: two draws", "two seeds give two results", "dropout")
def _differ(trial: Trial) -> Found:
    tokens = _text(trial)
    one, other = drawn(tokens, 1), drawn(tokens, 2)
    first = trial.ask(one)
    apart, allowed = distance(first, trial.ask(other)), trial.allowed(first)
    if (apart > allowed).any():
        return FINE
    row, position = (int(k) for k in np.unravel_index((apart - allowed).argmax(), apart.shape))
    usual = "the seed is not used, the rate is not passed on, or the model is not in training"
    said = "two seeds of dropout give the same results"
    return silent(said, one, other, (row, position), float(allowed[row, position]), usual)


@laws.ask("dropout: one draw again", "the same seed gives the same results", "dropout")
def _drawn_again(trial: Trial) -> Found:
    one = drawn(_text(trial), 1)
    usual = "a state that each call moves on, beside the seed"
    return same(trial, one, one._replace(room=1), "one seed of dropout gives two results", usual)


@laws.ask("dropout: none afterwards", "a call without a seed is as before one with it", "dropout")
def _afterwards(trial: Trial) -> Found:
    plain = Request(_text(trial))
    trial.ask(plain)
    trial.ask(drawn(plain.tokens, 3))
    said = "after a call with dropout, one without gives other results"
    return same(trial, plain, plain._replace(room=2), said, "the model stays in training")


@laws.ask(
    "dropout: mean of draws", "the mean of many draws is the result without dropout", "dropout", "mean of dropout"
)
def _mean(trial: Trial) -> Found:
    """Hold the mean of (draw · plain) / (plain · plain) against 1."""
    tokens = _text(trial)
    plain = Request(tokens)
    right = trial.ask(plain).astype(np.float64)
    draws = np.stack([trial.ask(drawn(tokens, seed)) for seed in range(DRAWS)])
    shares = (draws * right).sum((1, 2, 3)) / (right * right).sum()
    off, allowed = abs(shares.mean() - 1), SIGMAS * shares.std() / DRAWS**0.5 + trial.relative(right)
    if off <= allowed:
        return Found(Finding(Verdict.OK, error=float(off), allowed=float(allowed)))
    said = f"the mean of {DRAWS} draws of dropout is {shares.mean():.3g} times the result without"
    said += f", off by {off:.2g}, {beside_rounding(off, allowed).replace('rounding', 'chance')}"
    evidence = Evidence(plain, drawn(tokens, DRAWS), (0, 0), (0, 0), float(allowed), "mean")
    usual = "what is kept is not divided by 1 - rate, or is twice"
    return Found(Finding(Verdict.WRONG, said, "out", (0, 0), float(off), float(allowed)), evidence, usual)
