"""Every way of running a model gives the same numbers; so does a draw of dropout again, and the mean of draws is right.

The mean is asked of one layer of attention alone, whose results are linear in the weights that are dropped. Elsewhere
dropout stands before something that is not linear, and the mean of draws is not the result without it.
"""

from functools import partial

import numpy as np

from ..cases.case import GRADIENT
from ..judge.verdicts import Finding, Verdict
from .blackbox import Model, Request
from .padding import padded_request
from .trial import FINE, SLACK, Evidence, Found, Law, Trial, beside_rounding, distance, same, silent

AGAIN = "ways: again"
USUAL = "one of the two drops a mask or an option, or runs another formula"
TRAINED = ("training mode", "gradient checkpointing of layers")  # without dropout, as far as its rates are found
LENGTH = 33  # of texts for dropout
DRAWS = 64
SIGMAS = 6.0  # standard errors that the mean of draws may be off: by chance it is once in 5e8


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    found = [Law("ways", AGAIN, "the same call twice", _again)]
    for way, asked in model.ways.items():
        about = f"{way} as the plain way"
        padded = f"{about}, beside padding"
        if "results" in asked:
            found.append(Law("ways", f"ways: {way}", about, partial(_way, way=way)))
            found.append(Law("ways", f"ways: {way}, padded", padded, partial(_padded, way=way), ("right padding",)))
        if "gradient" in asked:
            pulled = partial(_way, way=way, gradient=True)
            found.append(Law("ways", f"ways: {way}, gradient", about, pulled, ("gradient",), GRADIENT))
            pulled = partial(_padded, way=way, gradient=True)
            needs = ("gradient", "right padding")
            found.append(Law("ways", f"ways: {way}, gradient, padded", padded, pulled, needs, GRADIENT))
    only = ("dropout",)
    return [
        *found,
        Law("ways", "dropout: two draws", "two seeds give two results", _differ, only),
        Law("ways", "dropout: one draw again", "the same seed gives the same results", _drawn_again, only),
        Law("ways", "dropout: none afterwards", "a call without a seed is as before one with it", _afterwards, only),
        Law("ways", "dropout: mean of draws", "the mean of many draws is the result without dropout", _mean,
            ("dropout", "mean of dropout")),
    ]  # fmt: skip


def _again(trial: Trial) -> Found:
    one = Request(trial.texts(2, trial.model.lengths((17,))[-1]))
    again = one._replace(room=1)  # room asks nothing of a call without a cache
    usual = "dropout that is on, or a state that a call changes"
    return same(trial, one, again, "the same call again gives other results", usual)


def _way(trial: Trial, way: str, gradient: bool = False) -> Found:
    tokens = trial.texts(2, trial.model.lengths((17,))[-1])
    return _judged(trial, Request(tokens), np.ones(tokens.shape, bool), way, gradient, "")


def _padded(trial: Trial, way: str, gradient: bool = False) -> Found:
    return _judged(trial, *padded_request(trial, "right", (9, 5, 1, 7)), way, gradient, " beside padding")


def _judged(trial: Trial, request: Request, real: np.ndarray, way: str, gradient: bool, where: str) -> Found:
    one = request._replace(weights=real.astype(np.float32)) if gradient else request
    other = one._replace(way=way)
    said = f"{way} gives {'another gradient' if gradient else 'other results'}{where}"
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


def _drawn_again(trial: Trial) -> Found:
    one = drawn(_text(trial), 1)
    usual = "a state that each call moves on, beside the seed"
    return same(trial, one, one._replace(room=1), "one seed of dropout gives two results", usual)


def _afterwards(trial: Trial) -> Found:
    plain = Request(_text(trial))
    trial.ask(plain)
    trial.ask(drawn(plain.tokens, 3))
    said = "after a call with dropout, one without gives other results"
    return same(trial, plain, plain._replace(room=2), said, "the model stays in training")


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
