"""``check_model``: judge a whole model or a layer, without a reference."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attendax.legible import did_you_mean

from ..cases import kinds
from ..cases.case import LEVELS, PROFILES, Case
from ..cases.how import drawn
from ..frameworks import corrected
from ..judge.verdicts import Finding, Verdict
from ..report import Report
from ..report.outcomes import MODEL_LAWS, Cause, Harm, Outcome, versions
from ..worker.errors import Died, Failed
from .blackbox import Computation, Model, Sees, declaration, told
from .describing import described
from .runner import script
from .running import AGAIN_WAYS
from .seen import fit
from .trial import LAWS, WIDE, Answers, Found, Law, Untold

FOLLOW = {  # a law -> those that may fail for no other reason than that it does
    "batch": set(MODEL_LAWS),
    "future": {"window", "positions", "padding", "packing", "cache", "ways", "gradient"},
    "past": {"window", "positions", "padding", "packing", "gradient"},
    "window": {"padding", "packing", "cache", "ways", "gradient"},
    "positions": {"padding", "packing", "cache"},
    "padding": {"ways", "gradient"},
    "packing": {"gradient"},
    "heads": {"gradient"},
}


RESTS = {  # a law -> the facts that its findings rest on, of those that may be taken for granted
    "future": ("causal",),
    "past": ("causal",),
    "window": ("causal", "layers"),
    "gradient": ("causal", "layers"),
    "padding": ("mask",),
}
HIDDEN = (Verdict.OK, Verdict.SILENT, Verdict.NOT_OFFERED)  # what a narrow dtype may say for want of digits
OF_TOKENS = ("future", "past", "window", "positions", "padding", "packing")  # laws that say which tokens matter
UNTOLD = "it cannot be told in "


def check_model(
    apply: Any, *, causal: bool | None = None, only: Iterable[str] = (), level: str = "everything",
    profile: str = "numbers", seed: int | None = None, timeout: float = 60.0, in_process: bool = False,
    progress: Callable[[int, int, Case], None] | None = None, **said: Any,
) -> Report:  # fmt: skip
    """Test a whole model or a layer by laws that need no reference: future, padding, batch, cache and others.

    ``apply(inputs, *, mask=None, lengths=None, segment_ids=None, positions=None)`` takes tokens (B, T) or vectors
    (B, T, M). It returns a result for each position, (B, T, ...); of several results the first counts. A keyword is
    passed only if a law needs it and the signature has it. ``mask`` is (B, T), True = a real token; ``lengths`` (B,) is
    padding on the right; ``segment_ids`` and ``positions`` are (B, T) integers; ``seed`` () is the integer seed of
    dropout. A call without a seed has no dropout.

    Args:
        apply: the function; a torch, transformers, flax nnx, flax linen (bound), equinox or keras module; or the path
            "module:name" of one.
        causal: True if a position sees only what is before it, False if it sees all. It may be left out for
            transformers models whose name tells, and if ``sees`` is given without blocks.
        only, level, profile, seed, in_process, progress: as in ``check``; laws have names such as "future", and
            "robust" adds NaN in the padding.
        timeout: seconds that the model may take for a case, in a process of its own.
        **said: the description of the model.

            - ``name`` in the report; ``arrays``, "jax", "torch" or "numpy".
            - ``inputs``, "tokens" or "vectors"; ``vocabulary``, the number of tokens, or ``width`` of the vectors.
            - ``mask``, "mask", "lengths" or None: the keyword for padding [by the signature].
            - ``cache``, ``(init, step)`` or ``(init, step, reorder)``: ``init(batch, room)`` returns a cache,
              ``step(inputs, cache)`` returns (results, cache) and may take ``positions``, ``reorder(cache, rows)``
              returns a cache.
            - ``sees``, the tokens that a position sees in a layer, or several of these joined by "+": "causal"; "all";
              "window:5" (five, with its own); "window:4,2" (four before, two after); "first:1"; "prefix:3" (the
              first three, seen by all); "blocks:8"; "blocks:4,8" (its block of four and eight tokens before).
              ``window=5`` is ``sees="window:5"``.
            - ``layers``, the number of attention layers; ``positions``, "absolute", "rotary", "relative" or "none".
            - ``longest``, the most tokens; ``pad``, the padding token.
            - ``ways``, keywords that must not change a number: ``{"flash": {"backend": "flash"}}``.
            - ``lacks``, laws and traits that the model does not have.
            - ``claims``: "bits" (what must not matter changes no bit), "own positions" (each text has positions of its
              own), "mean of dropout" (for a single layer with dropout on its weights).
            - ``heads``, a function of a layer that returns ``W_Q``, ``W_K``, ``W_V`` (M, N·D), ``W_O`` (N·D, M),
              ``b_Q``, ``b_K``, ``b_V``, ``b_O`` or None, and ``num_heads``.

    Returns:
        ``Report``, with the laws of models in place of L1 to L17.

    Raises:
        TypeError, ValueError: a setting is not valid, no case is left, or the simplest call fails.
        ModuleNotFoundError: a framework is not installed.

    Example:
        >>> import numpy as np
        >>> table = np.random.default_rng(0).standard_normal((50, 8))
        >>> def mean_of_all(tokens):
        ...     return table[tokens] + table[tokens].mean(1, keepdims=True)
        >>> print(check_model(mean_of_all, vocabulary=50, causal=True, seed=0).causes[0].name)
        future: every position sees all that comes after
    """
    model = described(apply, causal=causal, in_process=in_process, **said)
    try:
        laws, trial = choose(laws_of(model), only, level, profile), Answers(model, drawn(seed))
        outcomes, causes = _judged(trial, laws, timeout, progress)
    finally:
        model.subject.close()
    dtype = trial.dtype if trial.dtype == model.dtype else f"{trial.dtype} in {model.dtype}"
    about = dtype, trial.seed, level, versions(model.arrays), profile, causes
    return Report(model.name, "", model.arrays, outcomes, *about, process=model.process)


def _judged(
    trial: Answers, laws: list[Law], timeout: float, progress: Callable[[int, int, Case], None] | None
) -> tuple[tuple[Outcome, ...], tuple[Cause, ...]]:
    model, outcomes, usual = trial.model, [], {}
    for index, law in enumerate(laws):
        if progress:
            progress(index, len(laws), law.case)
        model.subject.allow(timeout)
        start, found = time.perf_counter(), _answer(trial, law)
        text = script(model, law, found) if found.verdict.fails else ""
        outcomes.append(Outcome(law.case, found.finding, time.perf_counter() - start, text))
        usual[law.case.name] = found.usual
    failed = [outcome for outcome in outcomes if outcome.verdict.fails]
    _refuse_undeclared(trial, {outcome.case.law for outcome in failed})
    return tuple(outcomes), _causes(failed, usual, corrected(model.arrays, model.guessed, "--arrays {}"), model.assumed)


def _refuse_undeclared(trial: Answers, failed: set[str]) -> None:
    """A model of which nothing was declared but causal, and that sees what can be declared, is not accused."""
    model = trial.model
    if model.visible.limited or "batch" in failed or not failed & {"future", "past"}:
        return
    words, causal = fit(trial)
    if words in ("", "window:1") or not Sees(words, causal).limited or (model.causal and not causal):
        return
    layers = f" (through layers: {model.layers})" * (model.layers > 1)
    raise ValueError(
        f"check_model: {model.name} sees exactly {told(words, causal)}{layers}, and {model.sees} is declared: "
        f'give {declaration(words, causal)} (in Python sees="{words}", causal={causal}); '
        "if that is not meant, it is what is wrong"
    )


def assert_model(apply: Any, **said: Any) -> None:
    """Assert in a test that a model satisfies the laws.

    Args:
        apply: as in ``check_model``.
        **said: settings of ``check_model``.

    Raises:
        AssertionError: the model breaks a law. The message has each cause, and a script that shows the first.
        TypeError, ValueError, ModuleNotFoundError: as in ``check_model``.

    Example:
        >>> import numpy as np
        >>> table = np.random.default_rng(0).standard_normal((50, 8))
        >>> assert_model(lambda tokens: table[tokens], vocabulary=50, causal=True, only=["future", "batch"])
    """
    report = check_model(apply, **said)
    if not report.ok:
        told = [f"{cause.name}; {cause.remedy}".rstrip("; ") for cause in report.causes]
        scripts = [cause.script for cause in report.causes[:1]]
        raise AssertionError("\n".join([str(report), *told, "", *scripts]))


def laws_of(model: Model) -> list[Law]:
    """Every question, in the order of ``MODEL_LAWS``."""
    found = (law for laws in LAWS for law in laws(model))
    return sorted(found, key=lambda law: list(MODEL_LAWS).index(law.case.law))


def choose(laws: list[Law], only: Iterable[str], level: str, profile: str) -> list[Law]:
    """The questions that are asked for."""
    kinds.checked("level", level, LEVELS, "check_model")
    kinds.checked("profile", profile, PROFILES, "check_model")
    only = [only] if isinstance(only, str) else list(only)
    named = {word: [law for law in laws if word == law.case.law or word in law.case.name] for word in only}
    for word, found in named.items():
        if not found:
            titles = list(dict.fromkeys(law.case.law for law in laws))
            raise ValueError(
                f"check_model: only got {word!r}, expected a law ({', '.join(titles)}) or a part of the name of a case"
                f"{did_you_mean(word, titles)}"
            )
    levels, profiles = LEVELS[: 1 + LEVELS.index(level)], PROFILES[: 1 + PROFILES.index(profile)]
    within = [law for law in laws if law.case.level in levels and law.case.profile in profiles]
    return [law for law in within if not only or any(law in found for found in named.values())]


def _answer(trial: Answers, law: Law) -> Found:
    """The answer; where a narrow dtype shows nothing, that of the model in float64."""
    try:
        found = _asked(trial, law)
    except Untold as error:
        found = Found(Finding(Verdict.NOT_OFFERED, str(error)))
    if found.verdict not in HIDDEN or law.case.law not in OF_TOKENS or (wide := trial.wide) is None:
        return found
    with contextlib.suppress(Untold):
        told = _asked(wide, law)
        if told.verdict is Verdict.OK:
            return found if found.verdict is Verdict.OK else told
        if told.verdict in (Verdict.SILENT, Verdict.LEAK) and (seen := told.evidence) is not None:
            one = seen.one._replace(way=WIDE) if isinstance(seen.one, Computation) else seen.one
            finding = told.finding._replace(message=f"{told.finding.message}, in float64")
            return told._replace(finding=finding, evidence=seen._replace(one=one, other=seen.other._replace(way=WIDE)))
    return found if found.verdict is not Verdict.SILENT else Found(Finding(Verdict.NOT_OFFERED, UNTOLD + trial.dtype))


def _asked(trial: Answers, law: Law) -> Found:
    try:
        for trait in (law.case.law, *law.case.needs):
            if trait in trial.model.lacks:
                raise NotImplementedError(trial.model.lacks[trait])
        return law.judge(trial)
    except Untold:
        raise
    except NotImplementedError as error:
        verdict, said = Verdict.NOT_OFFERED, str(error) or "NotImplementedError"
    except Died as died:
        verdict, said = Verdict.TIMEOUT if died.how == "timeout" else Verdict.CRASH, str(died)
    except Failed as error:
        verdict, said = Verdict.OBSCURE, f"fails: {error}"
    return Found(Finding(verdict, said))


def _causes(
    outcomes: list[Outcome], usual: dict[str, str], guess: str, assumed: Mapping[str, str]
) -> tuple[Cause, ...]:
    """One cause for each law whose faults follow from no other; ``usual`` has usual causes by the name of a case.

    A model may raise because of a ``guess`` of its arrays; ``assumed`` is what nobody said of the model.
    """
    left, found = outcomes, []
    at_random = any(o.case.name == AGAIN_WAYS for o in outcomes)  # then nothing that was compared is sure
    for law in ("ways", *MODEL_LAWS) if at_random else MODEL_LAWS:
        own = [o for o in left if o.case.law == law]
        if not own:
            continue
        first = own[0]
        follow = set(MODEL_LAWS) if law == "ways" and at_random else FOLLOW.get(law, set()) - {law}
        mine = own + [o for o in left if o not in own and (o.case.law in follow or o.finding == first.finding)]
        left = [o for o in left if o not in mine]
        broken = all(o.verdict in (Verdict.OBSCURE, Verdict.CRASH, Verdict.TIMEOUT) for o in own)
        harm = Harm.CRASH if broken else Harm.GRADIENTS if law == "gradient" else Harm.NUMBERS
        remedy = f"usual cause: {usual[first.case.name]}" if usual.get(first.case.name) else guess * broken
        if rests := [what for about, what in assumed.items() if about in RESTS.get(law, ())]:
            remedy = f"{remedy}{'; ' * bool(remedy)}it was taken for {', and '.join(rests)}"
        name = f"{law}: {first.finding.message.partition(': changing the token')[0].partition(': row')[0]}"
        found.append(Cause(name, harm, tuple(o.case.name for o in mine), remedy=remedy, script=first.reproduction))
    return tuple(found)
