"""The tests in ``on_eight``, in a process that has eight devices; all other tests keep their one device."""

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from attendax import attention, masks, sharding
from eight_devices import FOLDER, run

pytestmark = pytest.mark.smoke

SLOW = [path for path in sorted(FOLDER.glob("test_*.py")) if re.search(r"mark\.(slow|sample)", path.read_text("utf-8"))]


def test_on_eight_devices():
    run(FOLDER, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("file", SLOW, ids=lambda path: path.stem)
def test_on_eight_devices_more_of_it(file):
    run(file, "slow")


def test_a_call_on_one_device_enters_nothing_about_devices():
    """Of sharding only the name of the variable is read that says how a call is divided: no function of it runs."""
    rooms, entered = Path(sharding.__file__).parent, set()
    query = jnp.ones((1, 2, 8, 4))

    def note(frame, event, arg):
        if event == "call" and Path(frame.f_code.co_filename).parent == rooms:
            entered.add(frame.f_code.co_qualname)

    def loss(query):
        return attention(query, query, query, mask=masks.causal(1)).sum()

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        attention(query, query, query)
        jax.make_jaxpr(jax.value_and_grad(loss))(query)
    finally:
        sys.setprofile(before)
    assert entered == set()
