"""The default suite, which ``pytest`` runs by itself: no mistake that is planted in attention survives it.

The tables say which test notices a mistake, and slow tests that it does. Here: each of these tests is in the suite.
"""

import pytest

from default_suite import BY_DEFAULT, CATCHERS, function

pytestmark = pytest.mark.smoke


def test_each_test_that_a_mistake_in_the_kernel_needs_is_in_it(request):
    if not request.config.stash[BY_DEFAULT] or request.config.getoption("share") != "1/1":
        pytest.skip("not the default suite, of which alone every file is collected")
    collected = {name for item in request.session.items for name in (item.nodeid, function(item))}
    assert CATCHERS - collected == set()
