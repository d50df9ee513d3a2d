"""A model from what a user gives, and from what is said of it: in a process of its own, or in this one."""

import dataclasses
import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attendax.legible import did_you_mean

from ..adapters.implementation import lacking
from ..cases.kinds import checked
from ..frameworks import kinds, others
from ..frameworks.text import resolve
from ..report.outcomes import MODEL_LAWS
from ..worker.calling import Subject, Worker
from ..worker.errors import Died, Failed
from ..worker.place import error_of, path_in_other_process
from .adapters import offer
from .blackbox import COUNT, KEYWORDS, Computation, Model, Sees, says_causal, sees
from .runner import Offer, Runner

SEEN_EXAMPLES = "causal, all, window:5, first:1+window:5, prefix:3, blocks:8, blocks:4,8"
MODEL_SETTINGS: dict[str, tuple[Any, str, str]] = {  # of a command, too: the type or the choices, a value, and help
    "inputs": (("tokens", "vectors"), "", "kind of the inputs [tokens, or vectors if --width is given]"),
    "vocabulary": (int, "N", "number of known tokens"),
    "width": (int, "M", "width of vectors"),
    "arrays": (("jax", "torch", "numpy"), "", "kind of the arrays [found by trying]"),
    "mask": (("mask", "lengths"), "", "keyword for padding [by its signature]"),
    "cache": (str, "m:init,m:step", "functions of its cache, and a third that reorders the cache; or m:pair of them"),
    "sees": (str, "WORDS", f"tokens that a position sees in a layer: {SEEN_EXAMPLES}"),
    "window": (int, "W", "width of a window: short for --sees window:W"),
    "layers": (int, "L", "number of attention layers"),
    "positions": (("absolute", "rotary", "relative", "none"), "", "kind of its positions"),
    "longest": (int, "T", "largest number of tokens"),
    "pad": (int, "TOKEN", "token that stands for padding"),
    "lacks": (list, "TRAIT", "laws and traits that it lacks"),
    "heads": (str, "m:read", "function of a layer that gives its attention weights"),
    "claims": (list, "CLAIM", 'claims that are also tested: "bits", "own positions", "mean of dropout"'),
}
CLAIMS = ("bits", "own positions", "mean of dropout")
LEAST_VALUES = {"vocabulary": 4, "pad": 0}  # of a number; else 1
FROM_THE_FIRST = "what a position sees is counted from the first place"
ABSOLUTE = "positions are absolute, or nobody said what they are, and there is no argument positions"
UNSAID = "not said to be on the weights of one layer of attention alone"
ROOM_BYTES = 2**31  # bytes that a result may have: logits of a large vocabulary are large


def described(apply: Any, *, causal: bool | None = None, in_process: bool = False, **said: Any) -> Model:
    """Describe a model: ``check_model`` also takes this, in place of the model and what is said of it."""
    if isinstance(apply, Model):
        return apply
    path, there, why = ("", {}, "as requested") if in_process else _place(apply, said)
    if why:
        return dataclasses.replace(describe(apply, causal, said), process=why)
    worker = Worker("model", {"path": path, "causal": causal, "said": there}, room=ROOM_BYTES)
    try:
        told = worker.start()
        if "raised" in told:
            raise error_of(told, path)
        told |= {"known_tokens": np.array(told["known_tokens"], np.int32), "accepts": frozenset(told["accepts"])}
        return Model(subject=worker, **told)
    except BaseException as error:
        worker.close()
        if isinstance(error, Died):
            raise ValueError(f"check_model: {path}: when it was made: {error}") from error
        raise


def _place(apply: Any, said: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """The path by which another process makes the model, what is said there, and why it cannot be, if it cannot."""
    path, why = path_in_other_process(apply, "the model")
    there, whys = dict(said), [why]
    for name, what in (("cache", "a function of the cache"), ("heads", "the function that reads the weights")):
        if given := said.get(name):
            some = given if isinstance(given, (tuple, list)) else [given]
            paths, reasons = zip(*(path_in_other_process(x, what) for x in some), strict=True)
            there[name], whys = paths if some is given else paths[0], [*whys, *reasons]
    try:
        json.dumps(there)
    except TypeError:
        whys.append("what is said of it are objects of this process")
    return path, there, next(filter(None, whys), "")


def subject(message: dict[str, Any], trying: Any) -> Subject:
    """The model of a message, in the process that has it."""
    model = describe(message["path"], message["causal"], message["said"])
    model.subject.told = {k: x for k, x in vars(model).items() if k != "subject"}
    return model.subject


def describe(apply: Any, causal: bool | None, said: Mapping[str, Any]) -> Model:
    """Describe a model for ``check_model``."""
    names = ("name", "ways", *MODEL_SETTINGS)
    if unknown := sorted(set(said) - set(names)):
        known = ", ".join(names) + did_you_mean(unknown[0], names)
        raise TypeError(f"check_model: got an unexpected setting {unknown[0]!r}, expected some of {known}")
    path = apply if isinstance(apply, str) else None
    target = resolve(apply) if path else apply
    made, said, visible = _offered(target, causal, said)
    inputs, size = _inputs(said)
    try:
        accepts = frozenset(KEYWORDS) & set(inspect.signature(made.apply).parameters)
    except (TypeError, ValueError):
        accepts = frozenset()
    padding = said["mask"] if "mask" in said else next((k for k in ("mask", "lengths") if k in accepts), None)
    runner, dtype = _runner(made, target, said, size if inputs == "vectors" else None)
    traits = _traits(said, inputs, padding, accepts, visible, runner)
    checked("lacks", said["lacks"], (*traits, *MODEL_LAWS), "check_model")
    return Model(
        name=str(said.get("name") or path or getattr(target, "__qualname__", type(target).__name__)),
        arrays=runner.arrays, subject=runner, ways=runner.ways, inputs=inputs, sees=visible.words,
        known_tokens=_tokens(size if inputs == "tokens" else COUNT, said), causal=visible.causal,
        padding=padding, accepts=accepts, layers=said.get("layers") or 1, longest=said.get("longest"),
        pad=said.get("pad"), dtype=dtype, bits="bits" in said["claims"],
        lacks={trait: why for trait, why in traits.items() if why} | said["lacks"],
        lines=runner.lines(path) | {"width": str(size)},
        assumed=said["assumed"], guessed=() if said.get("arrays") or made.arrays else others(runner.arrays),
    )  # fmt: skip


def _offered(target: Any, causal: bool | None, said: Mapping[str, Any]) -> tuple[Offer, dict[str, Any], Sees]:
    """Adapt a model, join all that is said of it, and settle which tokens it sees."""
    if not isinstance(causal, bool | None):
        expected = "True (sees only what is before) or False (sees all)"
        raise ValueError(f"check_model: causal got {causal!r}, expected {expected}")
    words, window = said.get("sees"), said.get("window")
    visible = None
    if words is not None or window is not None:
        is_open = causal is None and (words is None or says_causal(words) is None)
        visible = sees(words, offer(target, None).facts.get("causal") if is_open else causal, window)
    given = {"cache": _cache(said["cache"])} if said.get("cache") else {}
    given |= {"heads": resolve(said["heads"])} if isinstance(said.get("heads"), str) else {}
    made = offer(target, visible.causal if visible else causal)
    claims = said.get("claims", ())
    claims = (*made.facts.get("claims", ()), *([claims] if isinstance(claims, str) else claims))
    lacks = lacking(made.facts.get("lacks")) | lacking(said.get("lacks"))
    said = {**made.facts, **said, **given, "lacks": lacks, "claims": claims}
    of_itself = said.pop("causal", None)
    visible = visible or sees(None, of_itself if causal is None else causal)
    assumed = {} if causal is not None else _of_causal(type(target).__name__, visible, of_itself)
    if visible.limited and not said.get("layers"):
        assumed["layers"] = "one layer of attention, as --layers is not given"
    if made.made is None and "mask" not in said:
        assumed["mask"] = "a mask that is True at real tokens, as the argument's name says"
    return made, said | {"assumed": assumed}, visible


def _of_causal(name: str, visible: Sees, of_itself: bool | None) -> dict[str, str]:
    """Say why a model is taken to be causal, or not, where nobody said it."""
    which = "causal" if visible.causal else "not causal"
    if visible.limited and says_causal(visible.words) is not None:
        return {}
    if of_itself is not None:
        return {"causal": f"{which}, as its name {name} says"}
    return {"causal": f"causal, as {visible.words} is read without --no-causal"}


def _cache(given: Any) -> tuple[Callable[..., Any], ...]:
    """The functions of a cache: each given, or by its path; or both by the path of a pair."""

    def flat(x: Any) -> Iterable[Any]:
        found = resolve(x) if isinstance(x, str) else x
        return itertools.chain.from_iterable(map(flat, found)) if isinstance(found, (tuple, list)) else [found]

    parts = tuple(flat(given))
    if len(parts) not in (2, 3) or not all(map(callable, parts)):
        names = ", ".join(getattr(x, "__name__", type(x).__name__) for x in parts)
        raise ValueError(f"check_model: cache got {names}, expected functions (init, step) or (init, step, reorder)")
    return parts


def _inputs(said: Mapping[str, Any]) -> tuple[str, int]:
    """Tokens or vectors, and how many or how wide; all that is said is checked."""
    inputs = said.get("inputs") or ("vectors" if said.get("width") else "tokens")
    size = "vocabulary" if inputs == "tokens" else "width"
    for name, (kind, _, _) in MODEL_SETTINGS.items():
        x, least = said.get(name), LEAST_VALUES.get(name, 1)
        if isinstance(kind, tuple) and x is not None:
            checked(name, x, kind, "check_model")
        if kind is int and (x is not None or name == size) and (not isinstance(x, int) or x < least):
            raise ValueError(f"check_model: {name} got {x!r}, expected a whole number, {least} or more")
    checked("claims", said["claims"], CLAIMS, "check_model")
    return inputs, said[size]


def _traits(
    said: Mapping[str, Any], inputs: str, padding: str | None, accepts: frozenset[str], visible: Sees, runner: Runner
) -> dict[str, str]:
    """All that a question may need, and why the model does not offer it; empty where it does."""
    positions, claims = said.get("positions"), said["claims"]
    cache: tuple[Any, ...] = said.get("cache") or ()
    given = "positions" in accepts
    free = given or positions not in (None, "absolute") or "own positions" in claims
    stepwise = bool(cache) and "positions" in inspect.signature(cache[1]).parameters
    long_prefix = "prefix" in visible.words and visible.extent() > 6  # the shortest beginning that is asked
    offered = {
        "mask": (padding == "mask", "no argument mask"),
        "right padding": (padding is not None, "no argument mask or lengths"),
        "left padding": (padding == "mask", "no argument mask, which padding on the left needs"),
        "places of tokens": (free and not visible.moves, FROM_THE_FIRST if visible.moves else ABSOLUTE),
        "beginnings": (visible.causal and not long_prefix, "a position sees what comes after it"),
        "vectors": (inputs == "vectors", "inputs are tokens"),
        "packed by positions": (given and "segment_ids" not in accepts, "texts are told apart by segment_ids"),
        "segment_ids": ("segment_ids" in accepts, "no argument segment_ids"),
        "given positions": (given, "no argument positions"),
        "relative": (positions in ("rotary", "relative"), "positions are not said to be rotary or relative"),
        "order": (positions not in (None, "none"), "positions are not said to be encoded"),
        "no order": (positions == "none" and visible.words == "all", "positions are not said to be none"),
        "window": (visible.limited, "nothing but causal is declared of what it sees"),
        "dropout": ("seed" in accepts, "no argument seed"),
        "mean of dropout": ("mean of dropout" in claims, UNSAID),
        "cache": (cache, "no cache is given"),
        "reordering": (len(cache) > 2, "no reordering is given"),
        "positions of steps": (stepwise, "no positions of steps is given"),
        "gradient": (inputs == "vectors" or runner.offer.embedding, "tokens have no gradient; a model of vectors has"),
    }
    if runner.arrays == "numpy":
        offered["gradient"] = False, "not tested for numpy models"
    whys = {trait: "" if offers else why for trait, (offers, why) in offered.items()}
    return whys | {"batch": "", "heads": _heads(runner)}


def _heads(runner: Runner) -> str:
    """Say why the weights of the heads are not known; empty where they are."""
    if runner.heads is None:
        return "the option `heads` is not given"
    if runner.table is None:
        return "inputs are tokens"
    try:
        return "" if runner.weights else "no weights"
    except NotImplementedError as error:
        return str(error)


def _tokens(count: int, said: Mapping[str, Any]) -> np.ndarray:
    return np.array([k for k in range(count) if k != said.get("pad")], np.int32)


def _runner(made: Offer, target: Any, said: Mapping[str, Any], width: int | None) -> tuple[Runner, str]:
    """Find arrays with which the plainest call works; also give the dtype of its results."""
    arrays, failed, second = said.get("arrays") or made.arrays, [], None
    length = min(4, said.get("longest") or 4)
    request = Computation(_tokens(6, said)[None, :length].repeat(2, axis=0))
    tried = [kind for kind in kinds() if arrays in (None, kind[0])]
    for offered, (kind, eager) in itertools.product([x for x in (made, made.otherwise) if x], tried):
        runner = Runner(offered, target, kind, eager, width, said)
        try:
            found = runner.ask(request)["out"]
            runner.text["results"] = str(found.shape[-1])
            dtype = runner.dtype or str(found.dtype)
            compiled = kind == "jax" and not eager
            # A torch table also takes NumPy's arrays, and gives torch's.
            if arrays or kind == "torch" or compiled or runner.gives in (kind, ""):
                return runner, dtype
            second = second or (runner, dtype)
        except (Failed, NotImplementedError) as error:
            failed.append(f"  {kind:<6} {error}")
    if second:
        return second
    rows = ";\n".join(dict.fromkeys(failed)) or "  expected arrays of jax, torch or numpy"
    raise ValueError(f"check_model: fails on the plainest call, inputs {request.tokens.shape}:\n{rows}")
