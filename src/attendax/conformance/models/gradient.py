"""Gradients come from where results do: not from the future, padding, or other rows; and from all that matters."""

import numpy as np

from ..cases.case import GRADIENT
from ..judge.verdicts import Finding, Verdict
from .blackbox import Request
from .padding import padded_request
from .trial import FINE, SIDES, Evidence, Found, Laws, Place, Trial, beside_rounding, not_a_number, true

LENGTH = 7
TRIES = 4  # texts, until what has to matter does
USUAL = "a backward pass with a mask of its own, a stopped gradient, or a backward that saves the wrong arrays"
OF_NAN = "an empty softmax, or 0 * NaN, in the backward pass"
laws = Laws("gradient")


@laws.ask("gradient: of one position", "0 for what may not matter, not 0 for what must", "gradient", level=GRADIENT)
def _positions(trial: Trial) -> Found:
    """Row t of a batch asks for the gradient of a loss at position t."""
    model = trial.model
    weights, sources = np.eye(LENGTH, dtype=np.float32), np.arange(LENGTH)
    may, must = model.may(sources, LENGTH).T, model.must(sources, LENGTH).T  # (position, source)
    requests = [
        Request(np.repeat(trial.texts(1, LENGTH, salt=salt), LENGTH, axis=0), weights=weights) for salt in range(TRIES)
    ]
    return _judged(trial, requests, may, must)


def _judged(trial: Trial, requests: list[Request], may: np.ndarray, must: np.ndarray) -> Found:
    """Hold the gradient's size (row, source) against where it may be, and where it must be in one text at least."""
    blind = must
    for request in requests:
        gradient = trial.ask(request)
        if (bad := ~np.isfinite(gradient).all(-1)).any():
            return not_a_number(request, true(bad)[0])._replace(usual=OF_NAN)
        size = np.abs(gradient).max(-1)
        allowed = size.max(1, keepdims=True) * max(trial.relative(gradient), 8 * trial.noise)
        if (leaks := ~may & (size > allowed)).any():
            row, source = place = true(leaks)[0]
            large = beside_rounding(float(size[place]), float(allowed[row, 0]))
            said = f"has a gradient of {size[place]:.2g} for position {source} of row {row}, {large}"
            said = f"a loss at {_named(request, place)} {said}"
            return _found(Verdict.LEAK, said, request, place, float(allowed[row, 0]))
        blind = blind & (size <= allowed * 1e-3)
        if not blind.any():
            return FINE
    place = true(blind)[0]
    said = f"has a gradient of 0 for position {place[1]}, which matters to it"
    return _found(Verdict.SILENT, f"a loss at {_named(requests[0], place)} {said}", requests[0], place, 0)


def _found(verdict: Verdict, said: str, request: Request, place: Place, allowed: float) -> Found:
    evidence = Evidence(request, request, place, place, allowed, "zero" if verdict is Verdict.LEAK else "some")
    return Found(Finding(verdict, said, "gradient", place), evidence, USUAL)


def _named(request: Request, place: Place) -> str:
    places = np.flatnonzero(np.asarray(request.weights)[place[0]])
    return f"position {places[0]}" if len(places) == 1 else "the real positions"


@laws.ask("gradient: of one row", "0 for the other rows", "gradient", "batch", level=GRADIENT)
def _rows(trial: Trial) -> Found:
    tokens = trial.texts(3, LENGTH)
    weights = np.zeros(tokens.shape, np.float32)
    weights[1] = 1
    request = Request(tokens, weights=weights)
    gradient = trial.ask(request)
    size = np.abs(gradient).max(-1)
    allowed = float(size.max()) * max(trial.relative(gradient), 8 * trial.noise)
    leaks = (weights == 0) & ~(size <= allowed)
    if not leaks.any():
        return FINE
    place = true(leaks)[0]
    said = f"a loss of row 1 has a gradient of {size[place]:.2g} for row {place[0]}"
    return _found(Verdict.LEAK, said, request, place, allowed)


@laws.ask(
    "gradient: padding, {}", "0 for padding on the {}, and a number for all", "gradient", "{} padding",
    of=SIDES, level=GRADIENT,
)  # fmt: skip
def _padding(trial: Trial, side: str) -> Found:
    request, mask = padded_request(trial, side, (5, 7, 3))
    near = np.zeros_like(mask) if trial.model.visible.limited else mask
    return _judged(trial, [request._replace(weights=mask.astype(np.float32))], mask, near)
