"""Two values off the law at once, all pairs of all axes: nothing false is said by `check`, nor by `diff`."""

import pytest

from attendax.conformance.conventions.values import LAW
from test_forms import APART, LIKE, SAYABLE, axes_of, compared, is_so, named, words

PARTS = 400


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_check_says_nothing_false(part):
    for pair in APART[part::PARTS]:
        form = LAW.but(**dict(pair))
        said, report = named(form)
        assert report.failures, pair
        assert {name for name in said & SAYABLE - words(form) if not is_so(form, name, report)} == set(), pair


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_diff_says_nothing_false(part):
    for pair in APART[part::PARTS]:
        found = compared(LAW.but(**dict(pair)))
        assert not found.equal, pair
        assert found.explained or "nothing that was asked tells these apart" in found.why, (pair, found.text())
        own = {axis for axis, _ in pair}.union(*(LIKE.get(value, ()) for value in pair))
        assert all(own & set(axes_of(x)) for x in found.differences), (pair, found.text())
