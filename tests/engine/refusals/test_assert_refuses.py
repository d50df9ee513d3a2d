"""The judge of refusals: what is refused well passes, every other way is told."""

import jax
import numpy as np
import pytest

from attendax.conformance import assert_refuses


def refuse(error=ValueError, text="attend: T=2 but S=3.\n  query  got (2,)"):
    raise error(text)


def test_the_message_is_returned():
    assert assert_refuses(refuse, ValueError, "attend: ", "T=2", "S=3") == "attend: T=2 but S=3.\n  query  got (2,)"


def test_under_jit():
    with pytest.raises(AssertionError, match=r"^accepted, where TypeError was expected; gives ArrayImpl of shape \(\)"):
        assert_refuses(lambda: jax.jit(lambda x: x)(1.0), TypeError)
    assert_refuses(lambda: jax.jit(lambda x: refuse())(1.0), ValueError, "attend")


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: np.zeros((2, 3)), r"^accepted, where ValueError was expected; gives ndarray of shape \(2, 3\)$"),
        (lambda: (1, 2), "^accepted, where ValueError was expected; gives tuple$"),
        (lambda: refuse(TypeError), "^refused by TypeError, not by ValueError: attend"),
        (lambda: refuse(UnicodeError), "^refused by UnicodeError, not by ValueError"),
        (lambda: refuse(text=""), "^'T=2', 'query' missing in the first line: ''$"),
        (refuse, r"^'query' missing in the first line: 'attend: T=2 but S=3\.'$"),
    ],
)
def test_what_is_no_refusal_is_told(call, told):
    with pytest.raises(AssertionError, match=told):
        assert_refuses(call, ValueError, "T=2", "query")


def test_what_stops_the_program_is_not_caught():
    with pytest.raises(KeyboardInterrupt):
        assert_refuses(lambda: refuse(KeyboardInterrupt), ValueError)
