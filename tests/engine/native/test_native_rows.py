"""L15 on the native path: a row is the same bits whatever else is in the call, whoever computes it."""

import functools
import threading

import jax
import numpy as np
import pytest

from attendax import attention, masks, scores
from judges import assert_same_bits
from native_calls import DROPOUT, Sizes, arrays, cotangents, needs_library

pytestmark = [needs_library, pytest.mark.law("L15", "native")]
native = functools.partial(attention, implementation="native", return_lse=True)

SIZES = {
    "many heads": Sizes(3, 4, 4, 200, 250, 32, 32),
    "groups": Sizes(3, 4, 2, 70, 120, 16, 8),
    "no whole vectors": Sizes(3, 3, 1, 131, 180, 20, 12),
    "folded": Sizes(3, 8, 2, 33, 83, 64, 64),
    "several chunks": Sizes(2, 2, 2, 600, 2000, 16, 16),
    "decoding": Sizes(6, 2, 1, 1, 5000, 32, 32),
}
OPTIONS = ("plain", "bias", "softcap", "slopes", "table", "sinks", "dropout", "all")


class Part:
    """Some rows of one call: which batch entries, groups and queries, and how many keys are left."""

    def __init__(self, z, option, dtype=np.float32, seed=0):
        self.z, self.option, self.behind = z, option, z.S - z.T
        self.query, self.key, self.value = arrays(z, dtype, seed)
        rng = np.random.default_rng(6)
        self.dout = rng.normal(size=(z.B, z.N, z.T, z.V)).astype(dtype)
        self.dlse = rng.normal(size=(z.B, z.N, z.T)).astype(np.float32)
        self.bias = rng.normal(size=(z.B, z.N, z.T, z.S)).astype(np.float32)
        self.slopes = np.linspace(0.01, 0.1, z.N, dtype=np.float32)
        self.table = rng.normal(size=(z.N, 9)).astype(np.float32)

    def options(self, b, h, t, s, mask=None):
        """The options of a call with these rows alone; the last row of the whole call sees the last key."""
        chosen = {"mask": masks.causal(t.start + self.behind) if mask is None else mask}
        if self.option in ("bias", "all"):
            chosen["bias"] = self.bias[b, h, t, s]
        parts = {
            "softcap": lambda: scores.softcap(3.0),
            "slopes": lambda: scores.alibi(self.slopes[h], t.start),
            "table": lambda: scores.relative_bias(self.table[h], t.start),
            "sinks": lambda: scores.sink(self.slopes[h]),
        }
        if self.option in parts:
            chosen["score_mod"] = parts[self.option]()
        if self.option == "all":
            chosen["score_mod"] = scores.compose(parts["softcap"](), parts["slopes"](), parts["sinks"]())
        return chosen | (DROPOUT if self.option == "dropout" else {})

    def take(self, b=slice(None), g=slice(None), t=slice(None), s=slice(None), mask=None):
        """out, lse and the gradients of query, key and value of a part of the call."""
        repeat = self.z.N // self.z.G
        g, t = slice(*g.indices(self.z.G)), slice(*t.indices(self.z.T))
        h = slice(g.start * repeat, g.stop * repeat)
        given = self.query[b, h, t], self.key[b, g, s], self.value[b, g, s]
        chosen = self.options(b, h, t, s, mask)
        results, pull_back = jax.vjp(lambda *x: native(*x, **chosen), *given)
        return *results, *pull_back((self.dout[b, h, t].astype(results[0].dtype), self.dlse[b, h, t]))


every = pytest.mark.parametrize("option", OPTIONS)


@pytest.mark.sample(9)
@every
@pytest.mark.parametrize("sizes", SIZES)
def test_a_text_does_not_depend_on_the_batch(sizes, option):
    """Alone, and beside others in another order: out, lse and all gradients. Dropout goes by place in the batch."""
    call = Part(SIZES[sizes], option)
    whole = call.take()
    one = slice(0, 1) if option == "dropout" else slice(1, 2)
    assert_same_bits(call.take(b=one), [x[one] for x in whole], "one batch entry alone")
    if option != "dropout":
        order = np.arange(SIZES[sizes].B)[::-1]
        assert_same_bits([x[order] for x in call.take(b=order)], whole, "another order")


@pytest.mark.sample(5)
@every
@pytest.mark.parametrize("sizes", ["groups", "folded"])
def test_a_head_does_not_depend_on_other_heads(sizes, option):
    call = Part(SIZES[sizes]._replace(B=1), option)
    repeat = call.z.N // call.z.G
    whole = call.take()
    got = call.take(g=slice(0, 1))
    for k, (x, y) in enumerate(zip(got, whole, strict=True)):
        assert_same_bits(x, y[:, : 1 if k in (3, 4) else repeat], f"result {k} of one group alone")


def test_query_heads_of_one_group_do_not_depend_on_each_other():
    """Two heads that share keys, folded into one block or not: the same query in both gives the same bits."""
    for T in (1, 33, 70):
        z = Sizes(1, 4, 1, T, 150, 32, 32)
        call = Part(z, "plain")
        call.query[:, 3], call.dout[:, 3], call.dlse[:, 3] = call.query[:, 0], call.dout[:, 0], call.dlse[:, 0]
        out, lse, dquery, *_ = call.take()
        alone, its_lse, its_dquery, *_ = native_of_one_head(call)
        for x, y in ((out, alone), (lse, its_lse), (dquery, its_dquery)):
            assert_same_bits(x[:, 3:], x[:, :1], f"T {T}, two heads")
            assert_same_bits(x[:, :1], y, f"T {T}, one head alone")


def native_of_one_head(call):
    given = call.query[:, :1], call.key, call.value
    results, pull_back = jax.vjp(lambda *x: native(*x, mask=masks.causal(call.behind)), *given)
    return *results, *pull_back((call.dout[:, :1], call.dlse[:, :1]))


def chunks(T):
    return {(0, 1), (T // 2, T // 2 + 1), (10, 30), (T // 3, T)} if T > 1 else {(0, 1)}


@pytest.mark.sample(9)
@pytest.mark.parametrize("option", [option for option in OPTIONS if option != "dropout"])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_row_does_not_depend_on_other_queries_nor_on_keys_behind(sizes, option):
    """A chunk, and one token, beside all keys, or beside those that exist by then: out, lse, gradient of the query."""
    call = Part(SIZES[sizes]._replace(B=1), option)
    whole = call.take()[:3]
    for k, (a, b) in enumerate(sorted(chunks(call.z.T))):
        wanted = [x[:, :, a:b] for x in whole]
        s = slice(0, call.z.S if k % 2 else b + call.behind)
        assert_same_bits(call.take(t=slice(a, b), s=s)[:3], wanted, f"queries {a} to {b} beside keys to {s.stop}")


@pytest.mark.sample(6)
@every
@pytest.mark.parametrize("sizes", SIZES)
def test_keys_behind_a_length_or_outside_a_window_do_not_exist(sizes, option):
    call = Part(SIZES[sizes]._replace(B=1), option)
    half, T = call.z.S // 2, call.z.T
    length = masks.padding(np.array([half], np.int32))
    dense = np.broadcast_to(np.arange(call.z.S) < half, (T, call.z.S))
    wanted = call.take(s=slice(0, half), mask=masks.window(None, None))
    got = call.take(mask=length)
    assert_same_bits([*got[:3], *(x[:, :, :half] for x in got[3:])], wanted, "a length")
    assert_same_bits(call.take(mask=dense)[:3], wanted[:3], "a dense mask")
    window = masks.window(7, None) & masks.causal(10)
    if option != "dropout":
        seen = call.take(t=slice(T - 1, T), mask=masks.window(7, 10, T - 1))[:3]
        assert_same_bits(seen, [x[:, :, -1:] for x in call.take(mask=window)[:3]], "the last row of a window")


def test_few_wide_rows_do_not_depend_on_other_rows():
    """Of more than 64 columns sums are kept apart, in a panel and in few rows that go through the keys as they lie."""
    call = Part(Sizes(1, 2, 2, 20, 60, 144, 144), "plain")
    mask = masks.window(None, None)
    whole = call.take(mask=mask)[:2]
    for a, b in ((0, 1), (5, 8)):
        assert_same_bits(call.take(t=slice(a, b), mask=mask)[:2], [x[:, :, a:b] for x in whole], f"queries {a} to {b}")


def test_a_row_of_a_wide_window_does_not_depend_on_other_rows():
    """It begins in the midst of a tile: what other rows of a block see before it changes nothing."""
    query, key, value = arrays(Sizes(1, 2, 2, 700, 700, 16, 16), np.float32)
    out, lse = native(query, key, value, mask=masks.window(150, 10))
    alone = jax.jit(lambda query, t: native(query, key, value, mask=masks.window(150, 10, t)))
    for t in (200, 383, 511, *range(300, 700, 19)):
        got = alone(query[:, :, t : t + 1], t)
        assert_same_bits(got, (out[:, :, t : t + 1], lse[:, :, t : t + 1]), f"query {t}")


@pytest.mark.sample(3)
@pytest.mark.parametrize("option", ["plain", "bias", "slopes"])
@pytest.mark.parametrize("sizes", SIZES)
def test_eager_jit_vmap_and_leading_axes_are_the_same_bits(sizes, option):
    call = Part(SIZES[sizes], option)
    wanted = call.take()
    assert_same_bits(jax.jit(call.take)(), wanted, "jit, operands constant")
    z, s = call.z, slice(None)
    chosen = call.options(s, slice(0, z.N), slice(0, z.T), s)
    bias = chosen.pop("bias", None)
    extra = () if bias is None else (bias,)

    def pulled(query, key, value, dout, dlse, *bias):
        options = chosen | ({"bias": bias[0]} if bias else {})
        results, pull_back = jax.vjp(lambda *x: native(*x, **options), query, key, value)
        return *results, *pull_back((dout, dlse))

    given = call.query, call.key, call.value, call.dout, call.dlse, *extra
    assert_same_bits(jax.jit(pulled)(*given), wanted, "jit")
    assert_same_bits(jax.vmap(pulled)(*given), wanted, "vmap over the batch")
    inner = [x[:, None] for x in given]
    assert_same_bits([x[:, 0] for x in jax.vmap(pulled)(*inner)], wanted, "vmap and a leading axis")
    assert_same_bits([x[0] for x in pulled(*(x[None] for x in given))], wanted, "one more leading axis")


def test_other_queries_that_are_not_finite_do_not_matter():
    """A block with a NaN is computed with care; its other rows keep their bits, and keys that they do not see."""
    call = Part(SIZES["groups"], "plain")
    clean = call.take(mask=masks.causal(10))
    call.query[1, 2, 40, 3] = np.nan
    call.key[0, 0, 110:] = np.inf
    spoiled = call.take(mask=masks.causal(10))
    for x, y in zip(spoiled[:3], clean[:3], strict=True):
        kept = ~np.isnan(np.asarray(x, np.float32)).reshape(*x.shape[:3], -1).any(-1)
        assert kept.sum() == kept.size - 1
        assert_same_bits(np.asarray(x)[kept], np.asarray(y)[kept], "rows that see nothing of it")


# Threads and devices


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "with a bias"])
def test_the_same_bits_run_after_run(shared):
    """Where chunks of queries join their shares of dk, dv and of the gradient of a bias, in whatever order they end."""
    z = Sizes(2, 4, 2, 1100, 300, 8, 8)
    given, found = arrays(z, np.float32), cotangents(z, np.float32)
    bias = np.ones((z.T, 1), np.float32) if shared else None

    @jax.jit
    def pulled(given, bias):
        results, pull_back = jax.vjp(lambda given, bias: native(*given, bias=bias), given, bias)
        return pull_back(tuple(d.astype(x.dtype) for d, x in zip(found, results, strict=True)))

    wanted = pulled(given, bias)
    for _ in range(30):
        assert_same_bits(pulled(given, bias), wanted, "once more")


def test_sixty_four_threads_call_at_once():
    """Calls of several sizes, some under vmap: no deadlock, and each has the bits that it has alone."""
    calls = [
        Part(z._replace(B=2), "plain") for z in (SIZES["groups"], SIZES["folded"], Sizes(2, 4, 2, 300, 300, 32, 32))
    ]
    wanted = [call.take() for call in calls]
    failures, start = [], threading.Barrier(64)

    def work(k):
        start.wait()
        for n in range(4):
            call = (k + n) % len(calls)
            try:
                assert_same_bits(calls[call].take(), wanted[call], f"thread {k}")
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert not failures, failures[0]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_a_sink_is_merged_in_every_program_alike(length, rng):
    """The sum of the keys and of the sink is no multiply-add in some programs and two roundings in others."""
    query, key, value = (rng.standard_normal((2, 8, 60, 8)).astype(np.float32) for _ in range(3))
    logits, dout, dlse = (rng.standard_normal(shape).astype(np.float32) for shape in ((8,), query.shape, (2, 8, 60)))

    def run(query, dout, dlse, offset):
        def attend(query):
            return native(query, key, value, mask=masks.causal(offset), score_mod=scores.sink(logits))

        results, pull = jax.vjp(attend, query)
        return *results, *pull((dout, dlse))

    whole = [np.asarray(x) for x in jax.jit(run)(query, dout, dlse, 0)]
    assert_same_bits(run(query, dout, dlse, 0), whole, "eager")
    compiled = jax.jit(run)
    for at in range(0, 60 - length, length):
        rows = slice(at, at + length)
        found = compiled(query[:, :, rows], dout[:, :, rows], dlse[:, :, rows], at)
        assert_same_bits(found, [x[:, :, rows] for x in whole], f"{length} rows from {at}")
