"""Judge an implementation: every case, one after the other."""

import dataclasses
import functools
import importlib.util
import unittest
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attendax.legible import did_you_mean

from .adapters import ADAPTERS, adapter_for
from .adapters.adapter import Adapter
from .adapters.layout import laid_out, plain
from .cases import CASES, Case, at_sizes, choose
from .diagnoses import diagnosed
from .frameworks import framework
from .how import How
from .implementation import Implementation, resolve
from .judging import judge
from .known_failures import KnownFailures
from .outcomes import versions
from .report import Report
from .trial import Failed, NoNumbers, first_line, run
from .verdicts import Finding, Verdict

LAYOUT = ("layout", "names", "mask_true", "lse_base")  # go with an adapter of one's own, not with one that ships
SETTINGS = (*LAYOUT, "causal", "empty_rows", "lacks", "device")
OVERRIDES = ("causal", "empty_rows", "lacks", "device")  # the settings that go with an adapter


def check(
    fn: Any,
    *,
    name: str | None = None,
    adapter: Any = None,
    arrays: str | None = None,
    backward: Callable[..., Any] | None = None,
    only: Iterable[str] | None = (),
    level: str = "everything",
    profile: str = "numbers",
    dtype: str = "float32",
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    precision: str = "highest",
    known_failures: str | None = None,
    progress: Callable[[int, int, Case], None] | None = None,
    **settings: Any,
) -> Report:
    """Judge an attention function, law by law, gradients included.

    ``fn(query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None,
    return_lse=False, offset=0)`` takes arrays (..., N, T, D), (..., G, S, D), (..., G, S, V) and gives (..., N, T, V),
    with ``return_lse`` also (..., N, T). A keyword is passed only where a case needs it. What the signature does not
    name, or raises ``NotImplementedError``, is not offered. A mask is boolean, True = may look; ``is_causal`` begins at
    key 0; ``offset`` (B,) is where the queries begin among the keys, for ``is_causal``: a cache; ``window`` is
    (left, right), None = no bound; lengths are (B,), segment ids (B, T) and (B, S);
    ``dropout_rng`` is a JAX key, or an integer where the arrays are not JAX's.

    Args:
        fn: the function; or its path "module:function"; or an ``Implementation``.
        name: for the report; the function's own unless given.
        adapter: the name of one that ships, an ``Adapter``, or a function ``call(fn, query, key, value, **options)``; a
            path has its own where one ships.
        arrays: "jax", "torch" or "numpy"; found by trying unless given.
        backward: ``backward(grad_output, query, key, value, *, ..., grad_lse=None)`` gives the gradients of query, key,
            value and bias in this order; NumPy has no others, JAX and torch take them in place of their own.
        only: laws ("L6"), parts of the names of cases, and keywords that are in no name ("offset"); all unless given.
        level: "forward", "gradient" (and forward) or "everything"; "backward" is the gradients alone.
        profile: "numbers": are values and gradients right where the function offers something; "robust" adds NaN under
            masks, extremes and empty sets; "law" is every case, and precision as L8 has it.
        dtype: of the cases that do not choose their own.
        seed: of the numbers.
        sizes: of some axes, such as ``dict(B=2, N=8, T=1024, S=1024, D=64)``: every case that makes sense there.
        precision: of float32 products: "highest", "tf32" or "bf16"; as much as the dense formula is off at it is
            allowed.
        known_failures: a file of lines "skip CASES" and "xfail CASES", as ``KnownFailures`` has them.
        progress: is told index, number and case before each.
        **settings: ``causal``, ``empty_rows``, ``lacks``, ``device``; but for an adapter that ships also ``layout``,
            ``names``, ``mask_true``, ``lse_base``, as ``attendax check --help`` has them.

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
    how = How(seed, dtype, profile, dict(sizes or {}), precision).checked()
    cases = at_sizes(choose(only, level, profile), how.sizes)
    listed = KnownFailures.read(known_failures)
    implementation = implement(fn, name=name, adapter=adapter, arrays=arrays, backward=backward, how=how, **settings)
    outcomes = []
    for index, case in enumerate(cases):
        if progress:
            progress(index, len(cases), case)
        outcomes.append(listed.skipped(case) or listed.marked(judge(implementation, case, how)))
    causes = diagnosed(implementation, [o for o in outcomes if o.verdict.fails and not o.known], how)
    name, arrays = implementation.name, implementation.arrays
    return Report(
        name, implementation.version, arrays, tuple(outcomes), dtype, seed, level, versions(arrays), profile, causes
    )


def assert_conforms(
    fn: Any, case: Case, *, seed: int = 0, dtype: str = "float32", profile: str = "law", **settings: Any
) -> Finding:
    """Judge one case, for a test that is parametrised over ``CASES``.

    Args:
        fn: as of ``check``.
        case: one of ``CASES``.
        seed: of the numbers.
        dtype: of the cases that do not choose their own.
        profile: how much rounding is allowed, and whether every trait is asked, as of ``check``.
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
    how = How(seed, dtype, profile).checked("assert_conforms")
    outcome = judge(_implement_once(fn, settings), case, how)
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
    how: How | None = None,
    **settings: Any,
) -> Implementation:
    """What ``check`` judges, from what it is given."""
    if unknown := sorted(set(settings) - set(SETTINGS)):
        known = ", ".join(SETTINGS) + did_you_mean(unknown[0], SETTINGS)
        raise TypeError(f"check: got an unexpected setting {unknown[0]!r}, expected some of {known}")
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
        made = _by_adapter(adapter, fn, path, name, arrays, layout, how or How())
        return _overridden(made, arrays, backward, settings)
    arrays, eager = (arrays, False) if arrays else _kind_of_arrays(fn, name, settings, how or How())
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
        known = ", ".join(ADAPTERS) + did_you_mean(adapter, ADAPTERS)
        raise ValueError(f"check: adapter got {adapter!r}, expected module:function or one of {known}")
    shipped = ADAPTERS[adapter]
    own = path is None or path == shipped.function
    fn = None if own and isinstance(fn, str) else resolve(path) if path else fn
    return shipped.implementation(name or (adapter if fn is None else path or _name_of(fn)), fn, path)


def _name_of(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)


def _by_adapter(
    adapter: Any, fn: Any, path: str | None, name: str, arrays: str | None, layout: dict[str, Any], how: How
) -> Implementation:
    """With an adapter of one's own, which is given arrays in the layout that is said."""
    if not isinstance(adapter, Adapter):
        if not callable(adapter):
            raise TypeError(f"check: adapter got {type(adapter).__name__}, expected a name, an Adapter or a function")
        kind = arrays or _kind_of_arrays(functools.partial(adapter, fn), name, layout, how)[0]
        adapter = Adapter(adapter, "", arrays=kind)
    return laid_out(adapter.implementation(name, fn, path), **layout)


def _kind_of_arrays(fn: Any, name: str, settings: dict[str, Any], how: How) -> tuple[str, bool]:
    """With which arrays the plainest call works, and whether JAX may not compile it.

    Raises:
        ValueError: with none.
    """
    case = CASES[0].sized(how.sizes) or CASES[0]
    inputs = case.inputs(0, how.dtype)
    plain(fn, name, "numpy", **settings)  # a setting that is none is refused before anything is tried
    said = []
    for arrays, eager in (("jax", False), ("numpy", False), ("jax", True), ("torch", False)):
        if arrays == "torch" and not importlib.util.find_spec("torch"):
            continue
        if arrays == "numpy" and not (settings.get("device") or "cpu").startswith("cpu"):
            said.append(f"  {arrays:<6} has no device {settings['device']}")
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
    rows = ";\n".join(dict.fromkeys(said))
    raise ValueError(
        f"check: {name} fails on the plainest call, {how.dtype}, query {inputs.arrays['query'].shape}, "
        f"key and value {inputs.arrays['key'].shape}:\n{rows};\n  dtype, sizes and arrays ask for another call"
    )


def _gives_numpy(found: Any) -> bool:
    return isinstance(found[0] if isinstance(found, (tuple, list)) and found else found, np.ndarray)
