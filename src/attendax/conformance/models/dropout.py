"""Dropout, where the model takes a seed of it: draws differ, a draw can be had again, and their mean is right.

The mean is asked of one layer of attention alone, whose results are linear in the weights that are dropped. Elsewhere
dropout stands before something that is not linear, and the mean of draws is not the result without it.
"""

import numpy as np

from ..judge.verdicts import Finding, Verdict
from .blackbox import Model
from .equality import beside_rounding, same
from .law import Law
from .request import Request
from .trial import FINE, Evidence, Found, Trial, distance

LENGTH = 33
DRAWS = 64
SIGMAS = 6.0  # standard errors that the mean of draws may be off: by chance it is once in 5e8


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    needs = ("dropout",)
    return [
        Law("ways", "dropout: two draws", "two seeds give two results", _differ, needs),
        Law("ways", "dropout: one draw again", "the same seed gives the same results", _again, needs),
        Law("ways", "dropout: none afterwards", "a call without a seed is as before one with it", _afterwards, needs),
        Law("ways", "dropout: mean of draws", "the mean of many draws is the result without dropout", _mean,
            ("dropout", "mean of dropout")),
    ]  # fmt: skip


def _text(trial: Trial) -> np.ndarray:
    return trial.texts(2, trial.model.lengths((LENGTH,))[0])


def drawn(tokens: np.ndarray, seed: int) -> Request:
    """With dropout."""
    return Request(tokens, {"seed": np.array(seed, np.int32)})


def _differ(trial: Trial) -> Found:
    tokens = _text(trial)
    one, other = drawn(tokens, 1), drawn(tokens, 2)
    first = trial.ask(one)
    apart, allowed = distance(first, trial.ask(other)), trial.allowed(first)
    if (apart > allowed).any():
        return FINE
    at = tuple(int(k) for k in np.unravel_index((apart - allowed).argmax(), apart.shape))
    said = "two seeds of dropout give the same results"
    place = (at[0], at[1])
    evidence = Evidence(one, other, place, place, float(allowed[at]), "other")
    usual = "the seed is not used, the rate is not passed on, or the model is not in training"
    return Found(Finding(Verdict.SILENT, said, "out", place), evidence, usual)


def _again(trial: Trial) -> Found:
    tokens = _text(trial)
    one = drawn(tokens, 1)
    places = [((b, t), (b, t)) for b, t in np.ndindex(*tokens.shape)]
    usual = "a state that each call moves on, beside the seed"
    return same(trial, one, one._replace(room=1), places, "one seed of dropout gives two results", usual)


def _afterwards(trial: Trial) -> Found:
    tokens = _text(trial)
    plain = Request(tokens)
    places = [((b, t), (b, t)) for b, t in np.ndindex(*tokens.shape)]
    trial.ask(plain)
    trial.ask(drawn(tokens, 3))
    said = "after a call with dropout, one without gives other results"
    return same(trial, plain, plain._replace(room=2), places, said, "the model stays in training")


def _mean(trial: Trial) -> Found:
    """Of the results in the direction of those without dropout, (draw · plain) / (plain · plain), whose mean is 1."""
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
