"""Laws of running: through a cache, in every way, with dropout and backwards a model is the one function that it is.

The mean of draws of dropout is asked of one layer of attention alone, whose results are linear in the weights that are
dropped. Elsewhere dropout stands before something that is not linear, and the mean is not the result without it. The
heads of a layer are held against attention by its definition, of its weights in float64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attendax import spec

from ..cases.case import GRADIENT
from ..judge.verdicts import Finding, Verdict
from ..worker.errors import Failed
from .blackbox import WEIGHT_NAMES, Computation, Model, fitting, told, vectors
from .seen import MEASURED_TOKENS, pairs_seen
from .texts import ORDER_TEXTS, REAL, TOKENS, counted, padded
from .trial import FINE, SIDES, WIDE, Answers, Evidence, Found, ask, beside_rounding, fault, not_a_number, true

PREFIX = (5, 1, 1, 1, 1)
CHUNKS = {  # of the text
    "one at a time": (1,) * TOKENS,
    "a prefix, then one at a time": PREFIX,
    "chunks": (2, 4, 3),
    "the whole at once": (TOKENS,),
}
STEPS = (
    "the step is given the wrong position, its causal mask is aligned to the first key, the cache is written one off, "
    "or empty places of it are seen"
)
OF_LONG = "; where short texts are right, it keeps fewer tokens than it has room for, or has another window"
ELSEWHERE = (
    "through the cache it sees the same tokens, and they count otherwise: positions, or a bias by them, begin anew in "
    "a step or are one off, what is kept is rounded, it is that of another row, or a layer has the mask of another"
)
AHEAD = "its causal mask lets it see what comes after"
OVERWRITTEN = "tokens of earlier steps are overwritten, or hidden by a window, or by a mask that is aligned to the step"
IN_PLACE = "an operation in place, on the argument or on a view of it"
ONE_DROPS = "one of the two drops a mask or an option, or runs another formula"
TRAINED = ("training mode", "gradient checkpointing of layers")  # without dropout, as far as its rates are found
SLACK = 32.0  # float64 beside float32 is off by all the rounding there is, not by what differs between two orders
DROPOUT_DRAWS = 64
SIGMAS = 6.0  # standard errors that the mean of draws may be off: by chance it is once in 5e8
AGAIN_WAYS, PADDED_WAY = "ways: again", "{} as the plain way, beside padding"
OF_HEADS = (
    "another order of heads or of q, k and v in the weights, a scale that is not 1/sqrt of a head's width, or a bias "
    "that is left out"
)
LONG_TEXT = 130  # tokens
TEXT_SIZES = {"one token": {"size": (2, 1)}, "a short text": {"size": (2, 6)}, "a long text": {"size": (1, LONG_TEXT)}}
IN_FLOAT64 = 4.0  # times what two orders of the same sums may be apart: those of the definition are in float64
SHORT_TOKENS = 7  # tokens of texts for gradients
OF_GRADIENTS = "a backward pass with a mask of its own, a stopped gradient, or a backward that saves the wrong arrays"
OF_NAN = "an empty softmax, or 0 * NaN, in the backward pass"


def _of_chunks(model: Model) -> dict[str, Any]:
    """Chunks of a short text, and of a long one where the model takes such."""
    length = model.lengths((LONG_TEXT,))[-1]
    long = {"a long prefix, then one at a time": (length - 4, 1, 1, 1, 1)} if length > TOKENS else {}
    return {k: {"chunks": x} for k, x in (CHUNKS | long).items()}


@ask("cache: longer", "a cache with room for more changes nothing", "cache", of={"": {"room": TOKENS + 7}})
@ask("cache: {}", "{}, as the whole without a cache", "cache", of=_of_chunks)
def _chunks(trial: Answers, chunks: tuple[int, ...] = PREFIX, room: int = 0) -> Found:
    length = sum(chunks)
    tokens = trial.texts(2, length)
    stepped = Computation(tokens, chunks=chunks, room=room or length)
    places = [((b, t), (b, t)) for t in range(length) for b in range(2)]  # the first step that is wrong
    said = f"through the cache, {' + '.join(map(str, chunks))} tokens, results differ from the whole"
    found = trial.same(Computation(tokens), stepped, said, STEPS if length == TOKENS else STEPS + OF_LONG, places)
    short = found.verdict is Verdict.WRONG and length == TOKENS
    return found._replace(usual=_reason(trial, stepped)) if short else found


def _reason(trial: Answers, stepped: Computation) -> str:
    """The cause of a wrong step: the tokens that it sees, or their places."""
    if "positions of steps" not in trial.model.lacks:
        given = trial.same(Computation(stepped.tokens), stepped._replace(options=counted(2)), "", "")
        if not given.verdict.fails:
            return "the step's own positions: given 0, 1, 2, ... it is right"
    # The windows of some layers cover a short text.
    for further in (0, trial.model.lengths((MEASURED_TOKENS,))[-1] - TOKENS):
        chunks = (*stepped.chunks, *(1,) * further)
        try:
            through, whole = (pairs_seen(trial, x, sum(chunks)) for x in (chunks, ()))
        except (Failed, NotImplementedError):
            return STEPS
        more, less = through & ~whole, whole & ~through
        words, declared = (fitting(x, trial.model.layers, trial.model.causal) for x in (through, whole))
        if (more | less).any() and (not further or (words and declared)):  # of a long text rounding may hide some
            break
    else:
        return ELSEWHERE
    seen = f"through the cache a position sees {told(words)}" if words else "through the cache it sees other tokens"
    why = [AHEAD if np.tril(more, -1).any() else "a window, or a mask, is not passed on to the step"]
    return f"{seen}: " + ", and ".join(why * bool(more.any()) + [OVERWRITTEN] * bool(less.any()))


@ask("cache: beams", "rows go on from other rows of the cache", "cache", "reordering")
def _beams(trial: Answers) -> Found:
    tokens, order = trial.texts(3, TOKENS), (2, 0, 0)
    whole = tokens.copy()
    whole[:, :5] = tokens[list(order), :5]
    stepped = Computation(tokens, chunks=PREFIX, room=TOKENS, order=order)
    said = "rows that go on from other rows of the cache differ from their own whole texts"
    usual = "the cache is reordered in some layers only, or along the wrong axis"
    return trial.same(Computation(whole), stepped, said, usual, np.indices(tokens.shape)[1] >= 5)


@ask("cache: rewound", "a row goes back and writes again, beside one that goes on", "cache", "positions of steps")
def _rewound(trial: Answers) -> Found:
    tokens = trial.texts(2, TOKENS)
    back = tokens.copy()
    back[0, 5:] = tokens[0, 3:7]  # the first row writes the places 3 to 6 once more
    back[0, 3:5] = trial.others(tokens)[0, 3:5]
    at = counted(2)
    at["positions"][0, 5:] -= 2
    stepped = Computation(back, at, chunks=PREFIX, room=TOKENS)
    pairs = [((0, 3 + t), (0, 5 + t)) for t in range(4)] + [((1, t), (1, t)) for t in range(5, TOKENS)]
    usual = "one offset for all rows, or places that were written before are still seen"
    said = "rows at different places of the cache differ from the whole"
    return trial.same(Computation(tokens), stepped, said, usual, pairs)


def _that_give(asked: str, **given: Any) -> Callable[[Model], dict[str, Any]]:
    """The ways of a model of which something is asked, as arguments, with others that are given."""
    return lambda model: {way: {"way": way, "asked": asked} | given for way, of in model.ways.items() if asked in of}


@ask(AGAIN_WAYS, "the same call twice")
def _again(trial: Answers) -> Found:
    one = Computation(trial.texts(2, trial.model.lengths((17,))[-1]))
    again = one._replace(room=1)  # room asks nothing of a call without a cache
    usual = "dropout that is on, or a state that a call changes"
    return trial.same(one, again, "the same call again gives other results", usual)


@ask("ways: {}, gradient, padded", PADDED_WAY, "gradient", "right padding", of=_that_give("gradient", beside=True),
     level=GRADIENT)  # fmt: skip
@ask("ways: {}, gradient", "{} as the plain way", "gradient", of=_that_give("gradient"), level=GRADIENT)
@ask("ways: {}, padded", PADDED_WAY, "right padding", of=_that_give("results", beside=True))
@ask("ways: {}", "{} as the plain way", of=_that_give("results"))
def _way(trial: Answers, way: str, asked: str, beside: bool = False) -> Found:
    one = Computation(trial.texts(2, trial.model.lengths((17,))[-1]))
    real = np.ones(one.tokens.shape, bool)
    if beside:
        one, real = padded(trial, "right", REAL)
    what = "other results"
    if asked == "gradient":
        one, what = one._replace(weights=real.astype(np.float32)), "another gradient"
    other = one._replace(way=way)
    said = f"{way} gives {what}{' beside padding' * beside}"
    if way == WIDE:
        _refuse_other_dtypes(trial, one, other)
    found = trial.same(one, other, said, ONE_DROPS, real, SLACK)
    again = other._replace(room=1)
    if found.verdict.fails and way in TRAINED and trial.same(other, again, said, "", real, SLACK).verdict.fails:
        raise NotImplementedError("in training it still draws: its rate of dropout was not found")
    return found


def _refuse_other_dtypes(trial: Answers, plain: Computation, wide: Computation) -> None:
    """Say that a copy in float64 fails where the model does not: some parts of it know one dtype alone."""
    trial.ask(plain)
    try:
        trial.ask(wide)
    except Failed as error:
        raise NotImplementedError(f"it cannot be run in float64: {error}") from error


@ask("ways: its inputs", "nothing is written to what it is given")
def _its_inputs(trial: Answers) -> Found:
    trial.ask(padded(trial, "right", REAL)[0] if trial.model.padding else _plain(trial))
    if not trial.wrote:
        return FINE
    return Found(Finding(Verdict.WRONG, f"it writes to its caller's {' and '.join(trial.wrote)}"), None, IN_PLACE)


def _plain(trial: Answers) -> Computation:
    return Computation(trial.texts(2, trial.model.lengths((33,))[0]))


def _drawn(trial: Answers, seed: int) -> Computation:
    return _plain(trial)._replace(options={"seed": np.array(seed, np.int32)})


@ask("dropout: two draws", "two seeds give two results", "dropout")
def _differ(trial: Answers) -> Found:
    usual = "the seed is not used, the rate is not passed on, or the model is not in training"
    return trial.differ(_drawn(trial, 1), _drawn(trial, 2), "two seeds of dropout give the same results", usual)


@ask("dropout: one draw again", "the same seed gives the same results", "dropout")
def _drawn_again(trial: Answers) -> Found:
    one = _drawn(trial, 1)
    usual = "a state that each call moves on, beside the seed"
    return trial.same(one, one._replace(room=1), "one seed of dropout gives two results", usual)


@ask("dropout: none afterwards", "a call without a seed is as before one with it", "dropout")
def _afterwards(trial: Answers) -> Found:
    plain = _plain(trial)
    trial.ask(plain)
    trial.ask(_drawn(trial, 3))
    said = "after a call with dropout, one without gives other results"
    return trial.same(plain, plain._replace(room=2), said, "the model stays in training")


@ask("dropout: mean of draws", "the mean of many draws is the result without dropout", "dropout", "mean of dropout")
def _mean(trial: Answers) -> Found:
    """Hold the mean of (draw · plain) / (plain · plain) against 1."""
    plain = _plain(trial)
    right = trial.ask(plain).astype(np.float64)
    draws = np.stack([trial.ask(_drawn(trial, seed)) for seed in range(DROPOUT_DRAWS)])
    shares = (draws * right).sum((1, 2, 3)) / (right * right).sum()
    off, allowed = float(abs(shares.mean() - 1)), float(SIGMAS * shares.std() / DROPOUT_DRAWS**0.5 + trial.rounding)
    if off <= allowed:
        return Found(Finding(Verdict.OK, error=off, allowed=allowed))
    said = f"the mean of {DROPOUT_DRAWS} draws of dropout is {shares.mean():.3g} times the result without"
    said += f", off by {off:.2g}, {beside_rounding(off, allowed).replace('rounding', 'chance')}"
    evidence = Evidence(plain, _drawn(trial, DROPOUT_DRAWS), (0, 0), (0, 0), allowed, "mean")
    return fault(Verdict.WRONG, said, "what is kept is not divided by 1 - rate, or is twice", evidence, off)


@ask("heads: padding, {}", "the same of real tokens beside padding", "heads", "{} padding", of=SIDES)
@ask("heads: {}", "the results are attention of the layer's weights", "heads", of=TEXT_SIZES)
def _heads(trial: Answers, size: tuple[int, int] = (0, 0), side: str = "") -> Found:
    """Hold the results of real tokens against the definition."""
    if side:
        request, real = padded(trial, side, REAL)
    else:
        request = Computation(trial.texts(size[0], trial.model.lengths(size[1:])[0]))
        real = np.ones(request.tokens.shape, bool)
    expected, said = by_definition(trial, request.tokens, real), "is not attention of the layer's weights"
    return trial.same(expected, request, said, OF_HEADS, real, IN_FLOAT64)


def by_definition(trial: Answers, tokens: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Multi-head attention of the weights, in float64: (B, T, M)."""
    weights = {name: trial.ask(Computation(tokens[:1, :1], read=name)) for name in WEIGHT_NAMES}
    known = {name: x for name, x in weights.items() if x.size}
    count = int(known["num_heads"])
    inputs = vectors(int(trial.model.lines["width"]))[tokens].astype(np.float64)
    groups = known["W_K"].shape[-1] * count // known["W_Q"].shape[-1]
    queries, keys, values = (
        (inputs @ known[f"W_{part}"] + known.get(f"b_{part}", 0.0)).reshape(*tokens.shape, heads, -1).swapaxes(1, 2)
        for part, heads in (("Q", count), ("K", groups), ("V", groups))
    )
    from attendax import masks  # it loads JAX

    mask = masks.dense(real[:, None, None, :] & trial.model.visible.pairs(real.shape[1]).T)
    found = np.asarray(spec.attention(queries, keys, values, mask=mask))
    return found.swapaxes(1, 2).reshape(*tokens.shape, -1) @ known["W_O"] + known.get("b_O", 0.0)


@ask("gradient: of one position", "0 for what may not matter, not 0 for what must", "gradient", level=GRADIENT)
def _of_positions(trial: Answers) -> Found:
    """Row t of a batch asks for the gradient of a loss at position t."""
    model, sources = trial.model, np.arange(SHORT_TOKENS)
    may, must = model.may(sources, SHORT_TOKENS).T, model.must(sources, SHORT_TOKENS).T  # (position, source)
    weights = np.eye(SHORT_TOKENS, dtype=np.float32)
    texts = (np.repeat(trial.texts(1, SHORT_TOKENS, salt=salt), SHORT_TOKENS, axis=0) for salt in range(ORDER_TEXTS))
    return _gradient(trial, [Computation(text, weights=weights) for text in texts], may, must, "at position {row}")


@ask("gradient: of one row", "0 for the other rows", "gradient", "batch", level=GRADIENT)
def _of_rows(trial: Answers) -> Found:
    tokens = trial.texts(3, SHORT_TOKENS)
    own = np.broadcast_to(np.arange(3)[:, None] == 1, tokens.shape)
    request = Computation(tokens, weights=own.astype(np.float32))
    return _gradient(trial, [request], own, np.zeros_like(own), "of row 1")


@ask("gradient: padding, {}", "0 for padding on the {}, and a number for all", "gradient", "{} padding",
     of=SIDES, level=GRADIENT)  # fmt: skip
def _of_padding(trial: Answers, side: str) -> Found:
    request, mask = padded(trial, side, (5, 7, 3), SHORT_TOKENS)
    must = np.zeros_like(mask) if trial.model.visible.limited else mask
    request = request._replace(weights=mask.astype(np.float32))
    return _gradient(trial, [request], mask, must, "at the real positions")


def _gradient(trial: Answers, requests: list[Computation], may: np.ndarray, must: np.ndarray, of: str) -> Found:
    """Hold the gradient's size (row, source) against where it may be, and where it must be in one text at least."""
    blind = must
    for request in requests:
        gradient = trial.ask(request)
        if (bad := ~np.isfinite(gradient).all(-1)).any():
            return not_a_number(request, true(bad)[0], OF_NAN)
        size = np.abs(gradient).max(-1)
        asked = np.any(request.weights, 1, keepdims=True)
        allowed = np.where(asked, size.max(1, keepdims=True), size.max()) * trial.rounding
        if (leaks := ~may & (size > allowed)).any():
            row, source = place = true(leaks)[0]
            large, bound = float(size[place]), float(allowed[row, 0])
            said = f"a loss {of.format(row=row)} has a gradient of {large:.2g} for position {source} of row {row}, "
            evidence = Evidence(request, request, place, place, bound, "zero")
            return fault(Verdict.LEAK, said + beside_rounding(large, bound), OF_GRADIENTS, evidence, leaf="gradient")
        blind = blind & (size <= allowed * 1e-3)
        if not blind.any():
            return FINE
    place = true(blind)[0]
    said = f"a loss {of.format(row=place[0])} has a gradient of 0 for position {place[1]}, which matters to it"
    evidence = Evidence(requests[0], requests[0], place, place, 0, "some")
    return fault(Verdict.SILENT, said, OF_GRADIENTS, evidence, leaf="gradient")
