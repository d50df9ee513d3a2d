"""Whether a mistake is refused, and in words that help (L14)."""

from collections.abc import Callable
from typing import Any


def assert_refuses(call: Callable[[], Any], error: type[Exception], *facts: str) -> str:
    """Assert that a call is refused: by exactly this error, whose first line states these facts.

    Args:
        call: of no arguments. A function under ``jax.jit`` is tried by a call of its own.
        error: the type; a subclass of it is another error.
        *facts: what the first line of the message has to hold, such as the name of the function, or two sizes that
            disagree.

    Returns:
        The whole message, for what else has to be in it.

    Raises:
        AssertionError: the call was accepted; or the error is of another type; or a fact is missing.

    Example:
        >>> import numpy as np
        >>> from attendax import spec
        >>> x = np.zeros((2, 3))
        >>> message = assert_refuses(lambda: spec.attention(x, x, x[1:]), ValueError, "attention: ", "S=2", "S=1")
        >>> print(message.splitlines()[0])
        attention: key has S=2 but value has S=1.
        >>> assert_refuses(lambda: x.reshape(4), TypeError)
        Traceback (most recent call last):
        AssertionError: refused by ValueError, not by TypeError: cannot reshape array of size 6 into shape (4,)
    """
    try:
        found = call()
    except Exception as caught:
        raised = caught
    else:
        shown = getattr(found, "shape", None)
        what = type(found).__name__ if shown is None else f"{type(found).__name__} of shape {shown}"
        raise AssertionError(f"accepted, where {error.__name__} was expected; gives {what}")
    message = str(raised)
    if type(raised) is not error:
        raise AssertionError(f"refused by {type(raised).__name__}, not by {error.__name__}: {message}") from raised
    first = message.splitlines()[0] if message else ""
    if missing := [fact for fact in facts if fact not in first]:
        raise AssertionError(f"{', '.join(map(repr, missing))} missing in the first line: {first!r}") from raised
    return message
