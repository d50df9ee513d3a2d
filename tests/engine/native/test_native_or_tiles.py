"""docs/implementations.md has each reason why a call runs in tiles, docs/how-it-is-fast.md the sizes of the kernel."""

import ast
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, explain, masks, scores
from attendax.kernels import native
from attendax.kernels.native import counting, program
from places import ROOT

IMPLEMENTATIONS = (ROOT / "docs/implementations.md").read_text("utf-8")
SIZES = (ROOT / "docs/how-it-is-fast.md").read_text("utf-8") + IMPLEMENTATIONS
ROWS = re.findall(r"^\| ((?!in tiles|---).+?) \| .+ \|$", IMPLEMENTATIONS.split("<!-- reasons -->")[1], re.MULTILINE)


def pattern(node):
    """The look of a reason: its words, and anything where numbers and names are filled in."""
    if isinstance(node, ast.Constant):
        return re.escape(node.value)
    return "".join(re.escape(x.value) if isinstance(x, ast.Constant) else ".+" for x in node.values)


def reasons():
    """Those in the source of the two functions, in their order."""
    found = []
    for function in (native.why_not, program.why_not):
        for node in ast.walk(ast.parse(inspect.getsource(function))):
            told = node.value if isinstance(node, ast.Return) else None
            if isinstance(node, ast.Tuple) and len(node.elts) == 2:  # whether it holds, and the reason
                told = node.elts[1]
            if isinstance(told, ast.JoinedStr) or (isinstance(told, ast.Constant) and isinstance(told.value, str)):
                found.append(pattern(told))
    return found


@pytest.mark.law("L16", "native")
def test_each_reason_has_a_row_and_each_row_is_a_reason():
    assert len(reasons()) == 14
    assert [row for row in ROWS if not any(re.fullmatch(reason, row) for reason in reasons())] == []
    for reason in reasons():
        assert sum(bool(re.fullmatch(reason, row)) for row in ROWS) == 1, reason


MANY = masks.causal()
for _ in range(5):
    MANY = MANY | ~MANY  # more than twice as many steps
QUERY, KEY = np.ones((1, 2, 4, 8), np.float32), np.ones((1, 2, 5, 8), np.float32)
CALLS = {  # calls on one device, by their row, or by the reason that the row describes
    "a function of your own": (QUERY, {"score_mod": scores.from_function(lambda s, at: 2 * s)}),
    "a function of your own ": (np.ones((1, 2, 9, 8), np.float32), {"mask": masks.from_function(lambda i, j: i != j)}),
    "a float64 bias with narrower queries": (QUERY, {"bias": np.zeros((4, 5))}),
    "several softcaps, or more than 6 modifiers": (QUERY, {"score_mod": scores.compose(*[scores.softcap(2.0)] * 2)}),
    "a mask with too many parts": (QUERY, {"mask": MANY}),
    "more than 12 leading axes": (QUERY.reshape(*[1] * 13, 2, 4, 8), {}),
    "a width above 4096": (np.ones((1, 1, 4, 4097), np.float32), {}),
}


@pytest.mark.smoke
@pytest.mark.law("L14", "native")
@pytest.mark.law("L16", "native")
@pytest.mark.skipif(not native.library().isa, reason=native.status())
@pytest.mark.parametrize("reason", CALLS)
def test_a_call_that_the_kernel_does_not_take(reason):
    """By name it is refused; else it runs in tiles, as ``explain`` says, and the page has its row."""
    query, options = CALLS[reason]
    key, reason = KEY if query is QUERY else query, reason.strip()
    explained = explain(query, key, key, **options)
    assert (explained.implementation, explained.impossible["native"]) == ("blockwise", reason)
    assert any(re.fullmatch(pattern, reason) and re.fullmatch(pattern, row) for pattern in reasons() for row in ROWS)
    with pytest.raises(NotImplementedError, match=reason):
        attention(query, key, key, implementation="native", **options)
    by_definition = attention(query, key, key, implementation="dense", **options)
    np.testing.assert_allclose(attention(query, key, key, **options), by_definition, rtol=1e-5)


def test_the_sizes_on_the_page_are_those_of_the_source():
    source = (ROOT / "src/attendax/kernels/native/csrc/problem.h").read_text("utf-8")
    sizes = {name: int(size) for name, size in re.findall(r"constexpr int (k\w+)\s*=\s*(\d+);", source)}
    assert (sizes["kBlockRows"], sizes["kTileKeys"]) == (counting.BLOCK, counting.TILE)
    limits = sizes["kMaxLead"], sizes["kMaxMaskOps"], sizes["kMaxMaskDepth"], sizes["kMaxModifiers"]
    assert limits == (program.MOST_LEAD, program.MOST_OPS, program.MOST_DEPTH, program.MOST_MODIFIERS)
    said = {
        "kBlockRows": "at most {} queries",
        "kTileKeys": "tiles of {} keys",
        "kMaxMaskOps": "more than {} steps",
    }
    assert [words for name, words in said.items() if words.format(f"{sizes[name]:,}") not in SIZES] == []


@pytest.mark.law("L16", "native")
@pytest.mark.skipif(not native.library().isa, reason=native.status())
def test_a_page_shows_what_explain_says():
    page = (ROOT / "docs/attention.md").read_text("utf-8")
    (shown,) = re.findall(r"<!-- native -->\n```text\n(.*?)\n```", page, re.DOTALL)
    x = jax.ShapeDtypeStruct((2, 8, 1024, 64), "float32")
    pair = shown, str(explain(x, x, x, mask=masks.window(128, 0)))
    told, said = (re.sub(r"(?<=temporaries  )[\d,]+", "?", text) for text in pair)  # XLA's, of each version its own
    assert told.splitlines() == said.splitlines()


@pytest.mark.skipif(not native.library().isa, reason=native.status())
@pytest.mark.parametrize("queries", [1, 8, 9])
def test_the_rule_of_a_mask_is_an_array_of_few_queries(queries):
    """Decoding with a rule of a user's own, grouped keys, bfloat16: the kernel's, with an array's bits."""
    rng = np.random.default_rng(2)
    shapes = (2, 8, queries, 16), (2, 2, 40, 16), (2, 2, 40, 16)
    arrays = [jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in shapes]
    first = jnp.array([3, 7])
    rule = masks.from_function(lambda i, j, first: (j < 5) | (j >= first), first, per="batch") & ~masks.window(1, 1)
    assert explain(*arrays, mask=rule).implementation == ("native" if queries <= 8 else "blockwise")
    if queries > 8:
        return
    loss = lambda mask: lambda *arrays: (attention(*arrays, mask=mask) ** 2).astype(np.float32).sum()  # noqa: E731
    for got, wanted in zip(
        *(
            jax.jit(jax.value_and_grad(loss(mask), (0, 1, 2)))(*arrays)[1]
            for mask in (rule, rule.to_dense(queries, 40))
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(wanted, np.float32))
    each = jax.vmap(lambda first: attention(*arrays, mask=masks.from_function(lambda i, j, f: j < f, first)))
    for b in range(2):
        one = attention(*arrays, mask=masks.from_function(lambda i, j, f: j < f, first[b]))
        np.testing.assert_array_equal(np.asarray(each(first)[b], np.float32), np.asarray(one, np.float32))
