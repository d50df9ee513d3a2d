"""The random driver over the kernels of Triton: values, gradients, what is not finite, and rows to the bit."""

import dataclasses
import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed; .ci/gpu has it", allow_module_level=True)

import gpu_calls as calls
import interpreted
from attendax import attention
from attendax.kernels.gpu import compiled, launches
from fuzz.case import Case, random
from fuzz.judge import ALIKE, judge

CASES, MOST_WORK = 24, 4000
SMALL = Case(N=2, G=1, T=40, S=40, D=8, V=8, mask=("window", 9, 0), implementation="triton")
MISTAKES = {  # by the law that is broken: the right text, the wrong one, and a case that shows it
    "L17": (
        "dk = add_product(dk, ds, q)", "dk = add_product(dk, p, q)",
        dataclasses.replace(SMALL, direction="grad", wanted=("key",))),
    "L15 rows": (
        "tl.min(tl.where(first < last, first, high)) // BLOCK * BLOCK", "tl.min(tl.where(first < last, first, high))",
        SMALL),
    "L6": ("            values = finite_or_zero(values)\n        if MODIFIED:", "        if MODIFIED:",
        dataclasses.replace(SMALL, S=60, poison=("unseen", "nan"))),
}  # fmt: skip


def case_of(seed: int) -> Case:
    """A case that the kernels take, of a moderate size.

    In 16 bits out and gradients of scores are rounded: what keys or values have in common then counts (L8), and what
    cancels where one key has nearly all of the weight, as with a scale of 25.
    """
    rng = np.random.default_rng(seed)
    while True:
        case = random(rng)
        changes = {"T": min(case.T, int(rng.integers(8, 75))), "S": min(case.S, int(rng.integers(8, 75)))}
        changes |= {"D": min(case.D, 32), "V": min(case.V, 32), "dtype": launches.DTYPES[seed % 3]}
        changes |= {"implementation": "triton", "layers": False, "jit": case.jit.replace("none", "outer")}
        if case.direction not in ("forward", "grad", "value_and_grad"):
            changes["direction"] = "grad"
        if seed % 3 != launches.DTYPES.index("float32"):
            changes |= {"common": 0.0, "values": "normal" if case.values in ALIKE else case.values}
            changes |= {"scale": None if case.scale == 25.0 else case.scale}
        case = dataclasses.replace(case, **changes).without()
        if case.is_valid() and 0 < case.work <= MOST_WORK and "function" not in repr((case.mask, case.modifier)):
            return case


def verdict_of(case, seed=0, kernels=None):
    with calls.in_interpreter(kernels), interpreted.in_order(), calls.parts_in_one_block(seed % 2 == 0):
        return judge(attention, case)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_kernels_are_right(seed):
    found = verdict_of(case_of(seed), seed)
    assert (found.findings, found.refused) == ([], ""), case_of(seed)


@pytest.mark.parametrize("law", MISTAKES)
def test_a_mistake_is_found(law, tmp_path):
    text = (compiled.HERE / "kernels.py").read_text("utf-8")
    right, wrong, case = MISTAKES[law]
    assert right in text
    kernels = interpreted.kernels_of({"kernels.py": text.replace(right, wrong)}, tmp_path)
    assert law in {finding.law for finding in verdict_of(case, kernels=kernels).findings}
