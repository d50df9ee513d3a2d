"""Judge an implementation: every case, one after the other."""

import dataclasses
import functools
import importlib.util
import time
import unittest
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .adapters import ADAPTERS, adapter_for
from .adapters.adapter import Adapter
from .adapters.layout import laid_out, plain
from .cases import CASES, Case, choose
from .frameworks import framework
from .implementation import Implementation, resolve
from .judges import JUDGES
from .outcomes import Outcome, versions
from .report import Report
from .reproduction import reproduction
from .trial import Failed, NoNumbers, Trial, first_line, run
from .verdicts import Finding, Verdict

DTYPES = ("float32", "float64", "bfloat16", "float16")
LAYOUT = ("layout", "names", "mask_true", "lse_base")  # go with an adapter of one's own, not with one that ships
SETTINGS = (*LAYOUT, "causal", "empty_rows", "lacks")
OVERRIDES = ("causal", "empty_rows", "lacks")  # the settings that go with an adapter


def check(
    fn: Any,
    *,
    name: str | None = None,
    adapter: Any = None,
    arrays: str | None = None,
    backward: Callable[..., Any] | None = None,
    only: Iterable[str] = (),
    level: str = "everything",
    dtype: str = "float32",
    seed: int = 0,
    progress: Callable[[int, int, Case], None] | None = None,
    **settings: Any,
) -> Report:
    """Judge an attention function, law by law, gradients included.

    ``fn(query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None,
    return_lse=False)`` takes arrays (..., N, T, D), (..., G, S, D), (..., G, S, V) and gives (..., N, T, V), with
    ``return_lse`` also (..., N, T). A keyword is passed only where a case needs it. What the signature does not name,
    or raises ``NotImplementedError``, is not offered. A mask is boolean, True = may look; ``is_causal`` begins at
    key 0; ``window`` is (left, right), None = no bound; lengths are (B,), segment ids (B, T) and (B, S);
    ``dropout_rng`` is a JAX key, or an integer where the arrays are not JAX's.

    Args:
        fn: the function; or its path "module:function"; or an ``Implementation``.
        name: for the report; the function's own unless given.
        adapter: the name of one that ships, an ``Adapter``, or a function ``call(fn, query, key, value, **options)``; a
            path has its own where one ships.
        arrays: "jax", "torch" or "numpy"; found by trying unless given.
        backward: of a NumPy function: ``backward(grad_output, query, key, value, *, ..., grad_lse=None)`` gives the
            gradients of query, key, value and bias in this order.
        only: laws ("L6") and parts of the names of cases; all unless given.
        level: "forward", "gradient" (and forward) or "everything".
        dtype: of the cases that do not choose their own.
        seed: of the numbers.
        progress: is told index, number and case before each.
        **settings: ``causal``, ``empty_rows``, ``lacks``; but for an adapter that ships also ``layout``, ``names``,
            ``mask_true``, ``lse_base``, as ``attendax check --help`` has them.

    Returns:
        ``Report``.

    Raises:
        TypeError, ValueError: a setting is none, no case is left, or the function fails with every kind of array.
        ModuleNotFoundError: a framework is not installed.

    Example:
        >>> from attendax import spec
        >>> def mine(query, key, value, *, scale=None):
        ...     scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        ...     return spec.softmax(scores) @ value
        >>> check(mine, arrays="numpy", only=["scale given"], level="forward").ok
        True
    """
    cases = choose(only, level)
    if dtype not in DTYPES:
        raise ValueError(f"check: dtype got {dtype!r}, expected one of {', '.join(DTYPES)}")
    implementation = implement(fn, name=name, adapter=adapter, arrays=arrays, backward=backward, **settings)
    outcomes = []
    for index, case in enumerate(cases):
        if progress:
            progress(index, len(cases), case)
        outcomes.append(judge(implementation, case, seed, dtype))
    name, arrays = implementation.name, implementation.arrays
    return Report(name, implementation.version, arrays, tuple(outcomes), dtype, seed, level, versions(arrays))


def assert_conforms(fn: Any, case: Case, *, seed: int = 0, dtype: str = "float32", **settings: Any) -> Finding:
    """Judge one case, for a test that is parametrised over ``CASES``.

    Args:
        fn: as of ``check``.
        case: one of ``CASES``.
        seed: of the numbers.
        dtype: of the cases that do not choose their own.
        **settings: ``name``, ``adapter``, ``arrays``, ``backward`` and the other settings of ``check``.

    Returns:
        What was found: ok, or differs by a convention that is declared.

    Raises:
        AssertionError: a fault; its message is the law, the case, what was found, and the reproduction.
        unittest.SkipTest: the function does not offer what the case asks; pytest counts it as skipped, with the reason.
        TypeError, ValueError, ModuleNotFoundError: as ``check``.

    Example:
        >>> import pytest
        >>> from attendax import spec
        >>> @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
        ... def test_attention(case):
        ...     assert_conforms(spec.attention, case)
    """
    if dtype not in DTYPES:
        raise ValueError(f"assert_conforms: dtype got {dtype!r}, expected one of {', '.join(DTYPES)}")
    outcome = judge(_implement_once(fn, settings), case, seed, dtype)
    finding = outcome.finding
    if finding.verdict is Verdict.NOT_OFFERED:
        raise unittest.SkipTest(f"not offered: {finding.message}")
    if finding.verdict.fails:
        head = f"{case.law}, {case.name}: {case.about}"
        raise AssertionError(f"{head}\n{outcome.told()}\n\n{outcome.reproduction}")
    return finding


_last: list[tuple[Any, dict[str, Any], Implementation]] = []


def _implement_once(fn: Any, settings: dict[str, Any]) -> Implementation:
    """``implement``, kept for the next case of the same function: finding its kind of arrays takes a call or two."""
    if not (_last and _last[0][0] is fn and _last[0][1] == settings):
        _last[:] = [(fn, settings, implement(fn, **settings))]
    return _last[0][2]


def implement(
    fn: Any,
    *,
    name: str | None = None,
    adapter: Any = None,
    arrays: str | None = None,
    backward: Any = None,
    **settings: Any,
) -> Implementation:
    """What ``check`` judges, from what it is given."""
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise TypeError(f"check: got an unexpected setting {unknown[0]!r}, expected some of {', '.join(SETTINGS)}")
    if "lacks" in settings and not isinstance(settings["lacks"], Mapping):
        settings["lacks"] = dict.fromkeys(settings["lacks"], "said to be lacking")
    if isinstance(fn, Implementation):
        return _overridden(fn, arrays, backward, settings)
    path = fn if isinstance(fn, str) else None
    if path and adapter is None:
        adapter = path if path in ADAPTERS else adapter_for(path)
        path = None if path in ADAPTERS else path
    if isinstance(adapter, str) and ":" in adapter:
        adapter = resolve(adapter)
    if isinstance(adapter, str):
        return _overridden(_by_shipped(adapter, fn, path, name), arrays, backward, settings)
    fn = resolve(path) if path else fn
    if not callable(fn):
        raise TypeError(f"check: fn got {type(fn).__name__}, expected a function or the path module:function of one")
    name = str(name or path or _name_of(fn))
    if adapter is not None:
        layout = {k: settings.pop(k) for k in LAYOUT if k in settings}
        return _overridden(_by_adapter(adapter, fn, path, name, arrays, layout), arrays, backward, settings)
    arrays, eager = (arrays, False) if arrays else _kind_of_arrays(fn, name, settings)
    framework(arrays)
    return plain(fn, name, arrays, path=path, backward=backward, eager=eager, **settings)


def _overridden(made: Implementation, arrays: str | None, backward: Any, settings: dict[str, Any]) -> Implementation:
    """What an adapter made, with the conventions that the user declares in its place.

    Raises:
        ValueError: a setting that an adapter sees to.
    """
    if arrays is not None and arrays != made.arrays:
        raise ValueError(f"check: arrays got {arrays!r}, but the adapter of {made.name} is for {made.arrays}")
    given = {k: x for k, x in (settings | {"backward": backward}).items() if x is not None}
    if taken := [k for k in given if k not in OVERRIDES]:
        known = ", ".join(OVERRIDES)
        raise ValueError(
            f"check: {taken[0]} got {given[taken[0]]!r}, but {made.name} has an adapter; with one go {known}"
        )
    lacks = {**made.lacks, **given.pop("lacks", {})}
    return dataclasses.replace(made, lacks=lacks, **given)


def _by_shipped(adapter: str, fn: Any, path: str | None, name: str | None) -> Implementation:
    if adapter not in ADAPTERS:
        known = ", ".join(ADAPTERS)
        raise ValueError(f"check: adapter got {adapter!r}, expected module:function or one of {known}")
    shipped = ADAPTERS[adapter]
    own = path is None or path == shipped.function
    fn = None if own and isinstance(fn, str) else resolve(path) if path else fn
    return shipped.implementation(name or (adapter if fn is None else path or _name_of(fn)), fn, path)


def _name_of(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)


def _by_adapter(
    adapter: Any, fn: Any, path: str | None, name: str, arrays: str | None, layout: dict[str, Any]
) -> Implementation:
    """With an adapter of one's own, which is given arrays in the layout that is said."""
    if not isinstance(adapter, Adapter):
        if not callable(adapter):
            raise TypeError(f"check: adapter got {type(adapter).__name__}, expected a name, an Adapter or a function")
        kind = arrays or _kind_of_arrays(functools.partial(adapter, fn), name, layout)[0]
        adapter = Adapter(adapter, "", arrays=kind)
    return laid_out(adapter.implementation(name, fn, path), **layout)


def _kind_of_arrays(fn: Any, name: str, settings: dict[str, Any]) -> tuple[str, bool]:
    """With which arrays the plainest call works, and whether JAX may not compile it.

    Raises:
        ValueError: with none.
    """
    inputs = CASES[0].inputs(0, "float32")
    plain(fn, name, "numpy", **settings)  # a setting that is none is refused before anything is tried
    said = []
    for arrays, eager in (("jax", False), ("numpy", False), ("jax", True), ("torch", False)):
        if arrays == "torch" and not importlib.util.find_spec("torch"):
            continue
        try:
            tried = plain(fn, name, arrays, eager=eager, **settings)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if arrays == "numpy" and not _gives_numpy(tried.attend(*inputs.arrays.values())):
                    continue
                run(tried, inputs, "forward")
            return arrays, eager
        except (Failed, NoNumbers, NotImplementedError, ValueError) as error:
            said.append(f"  {arrays:<6} {error}")
        except (Exception, SystemExit) as error:  # of the call with NumPy's arrays
            said.append(f"  {arrays:<6} {first_line(error)}")
    rows = "\n".join(dict.fromkeys(said))
    raise ValueError(
        f"check: {name} fails on the plainest call, query (2, 3, 5, 4), key and value (2, 3, 7, 4):\n{rows}"
    )


def _gives_numpy(found: Any) -> bool:
    return isinstance(found[0] if isinstance(found, (tuple, list)) and found else found, np.ndarray)


def judge(implementation: Implementation, case: Case, seed: int, dtype: str) -> Outcome:
    """One case: the verdict, and where it is a fault how to see it."""
    start = time.perf_counter()
    finding = _find(implementation, case, seed, dtype)
    seconds = time.perf_counter() - start
    text = reproduction(implementation, case, finding, seed, dtype) if finding.verdict.fails else ""
    return Outcome(case, finding, seconds, text)


def _find(implementation: Implementation, case: Case, seed: int, dtype: str) -> Finding:
    if implementation.arrays not in case.frameworks:
        return Finding(Verdict.NOT_OFFERED, f"{implementation.arrays} has nothing of the kind")
    trial = Trial(implementation, case, seed, dtype)
    if lack := implementation.lack(case.traits(trial.inputs)):
        return Finding(Verdict.NOT_OFFERED, lack)
    try:
        return JUDGES[case.judge](trial)
    except NotImplementedError as error:
        return Finding(Verdict.NOT_OFFERED, str(error) or first_line(error))
    except NoNumbers as found:
        return Finding(Verdict.WRONG, found.args[1], found.args[0])
    except Failed as failed:
        return Finding(Verdict.OBSCURE, str(failed))
