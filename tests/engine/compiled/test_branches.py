"""Branches that a program takes only for some numbers: a list of them, and for each that both ways are entered."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks
from attendax.kernels.blockwise import whole_heads

BRANCHES = {
    "kernels/numerics.py fusion_barrier": "a fusion barrier: always the first way, so that nothing is fused across",
    "kernels/blockwise/whole_heads.py forward": "numbers of 2**50 and more, or not finite, under a mask",
    "kernels/blockwise/partition.py _answers": "tiles that other masks leave open: of them alone a function is asked",
    "kernels/cudnn.py forward": "rows that see what is not finite; entered by test_cudnn.py",
    "kernels/cudnn.py cotangent": "the same, or gradients that may overflow; entered by test_cudnn.py",
}


def branches():
    """Where the package chooses at run time which of two programs runs: file and function."""
    package = Path(attendax.__file__).parent
    for path in sorted(package.rglob("*.py")):
        for function in ast.parse(path.read_text("utf-8")).body:
            calls = (x.func for x in ast.walk(function) if isinstance(x, ast.Call))
            names = [x.attr for x in calls if isinstance(x, ast.Attribute)]
            for _ in range(sum(name in ("cond", "switch", "while_loop") for name in names)):
                yield f"{path.relative_to(package).as_posix()} {getattr(function, 'name', '')}"


def test_every_branch_is_in_the_list():
    assert sorted(branches()) == sorted(BRANCHES)


@pytest.mark.parametrize(
    ("number", "is_plain"),
    [(1.0, True), (2.0**49, True), (2.0**50, False), (-(2.0**51), False), (np.inf, False), (np.nan, False)],
)
@pytest.mark.parametrize("which", range(3), ids=["query", "key", "value"])
def test_whole_heads_choose_where_a_number_is_huge(which, number, is_plain, rng, monkeypatch):
    """The rows that may look at such a number are those of the other way, and no row else is."""
    arrays = [np.asarray(rng.normal(size=(2, 2, 8, 4)), np.float32) for _ in range(3)]
    arrays[which][0, 0, 5, 1] = number
    by_choice = whole_heads._by_choice

    def noted(heads, plan):
        out, *others = by_choice(heads, plan)
        return jnp.full_like(out, 77), *others

    monkeypatch.setattr(whole_heads, "_by_choice", noted)
    in_tiles = {"mask": masks.causal(), "implementation": "blockwise"}
    out = jax.jit(lambda *arrays: attendax.attention(*arrays, **in_tiles))(*arrays)
    other_way = np.asarray(out == 77).all(axis=-1)
    wanted = np.zeros((2, 2, 8), bool)
    wanted[0, 0, 5 : 6 if which == 0 else 8] = not is_plain  # under a causal mask, later queries see a position
    np.testing.assert_array_equal(other_way, wanted)
