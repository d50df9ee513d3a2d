"""Our primitives as JAX's debugging tools (``debug_nans``, ``checkify``) see them: each one operation, like a product.

Inside, NaN marks numbers that are not finite (see ``not_finite``), and -inf marks forbidden pairs. The tools look only
at the results.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax._src import checkify  # its table of rules has no public name
from jax.experimental import jet
from jax.extend.core import Primitive

from attendax.checks import fail


def is_watched() -> bool:
    """Tell whether NaN or infinities raise (``jax_debug_nans``, ``jax_debug_infs``)."""
    return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # type: ignore[attr-defined]


def watched(name: str, run: Callable[..., Sequence[Array]], arrays: Sequence[Array]) -> Sequence[Array]:
    """``run(*arrays)``, unwatched inside; FloatingPointError as of any operation of JAX, if it is watched.

    An infinity inside comes out as NaN (L6): if no input has NaN, a NaN result came from an infinity. The row maximum
    of a forward is -inf for the empty set, and so is its lse; that is not an error.
    """
    nans, infs = jax.config.jax_debug_nans, jax.config.jax_debug_infs  # type: ignore[attr-defined]
    with jax.debug_nans(False), jax.debug_infs(False):
        results = run(*arrays)
        is_nan = _any(jnp.isnan, results)
        from_inf = _any(jnp.isposinf, results) or (is_nan and not _any(jnp.isnan, arrays))
    for kind, found in (("nan", nans and is_nan), ("inf", infs and from_inf)):
        if found:
            raise FloatingPointError(f"invalid value ({kind}) encountered in {name}")
    return results


def _any(test: Callable, arrays: Sequence[Array]) -> bool:
    return any(bool(test(x).any()) for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact))


def checked_by(primitive: Primitive, errors_inside: Callable) -> None:
    """Make ``checkify`` see a primitive: NaN among its results, and what else may go wrong inside.

    The results stay those of the primitive, with its derivatives.

    Args:
        primitive: with several results.
        errors_inside: from the kinds of errors, the arrays and the parameters to what ``checkify`` found inside.
    """

    def rule(*given: Any, **params: Any) -> Any:  # what JAX asks by, the Error, the kinds of errors, the arrays
        first = next(k for k, x in enumerate(given) if isinstance(x, checkify.Error))
        (*context, error, errors), arrays = given[: first + 2], given[first + 2 :]
        if others := errors - checkify.nan_checks:
            found, tree = jax.tree.flatten(errors_inside(others, arrays, params))
            join = checkify.error_checks[checkify.check_p]
            error, _ = join(*context, error, errors, *found, err_tree=tree, debug=False)
        return checkify.nan_error_check(primitive, *context, error, errors, *arrays, **params)

    checkify.error_checks[primitive] = rule


def without_jet(primitive: Primitive, function: str = "attention") -> None:
    """Make ``jet`` say in the name of a function that there is no rule for a primitive, and what there is instead."""

    def refuse(*_: object, **__: Any) -> Any:
        sentence = "jax.experimental.jet (Taylor mode) is not supported."
        fail(NotImplementedError, function, sentence, advice="Nest jax.jvp: one for each order.")

    jet.jet_rules[primitive] = refuse
