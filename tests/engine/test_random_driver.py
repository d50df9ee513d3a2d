"""The random driver: its reference, its cases, that it finds planted mistakes, and some seconds of attention itself."""

import dataclasses
import math
import re
import time

import hypothesis
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, spec
from fuzz import __main__ as command
from fuzz import data, rows
from fuzz.case import DIRECTIONS, LOSSES, POISONED, POISONS, Case, cases, random
from fuzz.judge import judge
from fuzz.program import Definition, flat
from native_calls import needs_library

SECONDS = 6


def some(count, holds, seed=0):
    """The first so many random cases for which something holds."""
    cases = (random(np.random.default_rng([seed, k])) for k in range(100_000))
    return [case for case, _ in zip((case for case in cases if holds(case)), range(count), strict=False)]


def has_no_function(modifier):
    return "'function'" not in repr(modifier)


def fine(case):
    """The case in float64, by one call."""
    case = dataclasses.replace(case, lead=() if case.one_head else case.lead)
    return dataclasses.replace(
        case, dtype="float64", x64=True, maps=(), shared=(), inside=False, layers=False, broadcast=(), known=()
    )


def assert_close(got, wanted, tolerance, least=1e-300):
    size = np.max(np.abs(wanted), where=np.isfinite(wanted), initial=least)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * size)


@pytest.mark.parametrize("case", some(60, lambda c: c.work < 5000 and has_no_function(c.modifier)), ids=repr)
def test_the_reference_is_the_specification(case):
    """Outputs and gradients: two formulas that share no line, but for which weights dropout keeps."""
    case = dataclasses.replace(
        fine(case), loss="weighted", lse="alone" if case.lse == "alone" else "sum" * bool(case.lse)
    )
    arrays = data.leaves(case)
    options = {"scale": case.scale, "bias": arrays.get("bias"), "mask": None, "dropout_rate": case.dropout}
    if case.mask is not None:
        options["mask"] = data.allowed(case, arrays)[(0,) if case.one_head else ...]
    if case.modifier is not None:
        options["score_mod"] = data.options(case, arrays)["score_mod"]
    if case.dropout:
        options["dropout_rng"] = arrays["rng"]
    given = [arrays[name] for name in ("query", "key", "value")]
    dout = arrays["cotangent_out"] * (case.lse != "alone")
    dlse = {"": 0.0, "sum": 1.0, "alone": arrays["cotangent_lse"]}[case.lse] * np.ones_like(arrays["cotangent_lse"])
    with np.errstate(all="ignore"):
        outputs, grads = (definition(case, arrays, direction) for direction in ("forward", "grad"))
        out, lse = spec.attention(*given, **options, return_lse=True)
        by_hand = spec.attention_backward(dout, *given, **options, grad_lse=dlse)
    assert_close(outputs["out"], out, 1e-12)
    if case.lse:
        assert_close(outputs["lse"], lse, 1e-12)
    if case.values != "huge" and (case.size or 0) < 1e3:  # there a rounding of 1e-16 may be more than the gradient
        names = [name for name in ("query", "key", "value", "bias") if name in grads]
        right = {name: getattr(by_hand, f"grad_{name}") for name in {*names, "query", "key", "value"}}
        largest = max(abs(x).max(initial=0.0) for x in right.values())
        for name in names:  # if all keys of a row are one, the gradient of the query is 0 beside that of the value
            assert_close(grads[name], right[name], 1e-9, 1e-3 * largest + 1e-300)


def definition(case, arrays, direction):
    case = dataclasses.replace(case, direction=direction)
    moves = data.directions(case, arrays)
    return Definition(case, arrays, moves)(arrays, moves)


TABLE = Case(direction="rr", T=2, S=2, modifier=("relative", 7, 0))  # of more columns than pairs: some are cut off


@pytest.mark.parametrize(
    "case", [TABLE, *some(15, lambda case: 0 < case.work < 500 and not case.layers, seed=1)], ids=repr
)
def test_numpy_runs_a_program_as_jax_does(case):
    """Every direction, with maps and layers: the definition, by NumPy and by JAX."""
    with np.errstate(all="ignore"), jax.enable_x64(True):
        arrays = data.leaves(case)
        moves = data.directions(case, arrays)
        right = Definition(case, arrays, moves)
        run = jax.extend.core.jaxpr_as_fun(right.program)(*jax.tree.leaves(right.given(arrays, moves)))
        by_numpy = right(arrays, moves)
        largest = max((np.max(abs(x), where=np.isfinite(x), initial=0.0) for x in by_numpy.values()), default=0.0)
        for name, x in flat(jax.tree.unflatten(right.tree, run)).items():  # a gradient may be 0 beside another one
            assert_close(by_numpy[name], np.asarray(x), 1e-9, 1e-3 * largest + 1e-300)


def test_a_case_prints_as_the_call_that_makes_it():
    for case in some(300, lambda case: True):
        assert eval(repr(case)) == case
        assert "\n" not in repr(case)


def features(case):
    """Every value of a field, of a tuple each of its own."""
    for name, value in dataclasses.asdict(case).items():
        yield from (f"{name} {x}" for x in jax.tree.leaves(value, is_leaf=lambda x: x is None))
    yield f"size of scores 1e{math.floor(math.log10(case.size or 1))}"
    yield f"rank {2 if case.one_head else 3 + len(case.lead) - len(case.maps)}"
    yield f"poison {' '.join(case.poison[:2])}"
    yield f"heads in all {math.prod((*case.lead, case.N))}"
    yield f"scores in a head more than 2^16: {case.T * case.S > 2**16}"


def test_the_cases_have_everything():
    """Every direction, loss, kind of mask and size beyond every limit is drawn."""
    seen = {feature for case in some(4000, lambda case: True) for feature in features(case)}
    wanted = [f"direction {x}" for x in DIRECTIONS] + [f"loss {x}" for x in LOSSES] + ["maps scan", "dtype float16"]
    wanted += [f"mask {kind}" for kind in (*data.MASKS, *data.JOINED, None)]
    wanted += [f"modifier {kind}" for kind in (*data.MODIFIERS, "compose", None)]
    wanted += [f"known {x}" for x in ("query", "key", "value", "bias", "mod", "mask", "cotangent")]
    wanted += [f"size of scores 1e{k}" for k in range(-3, 5)] + ["heads in all 1", "rank 2", "rank 3", "common 300.0"]
    wanted += [f"{axis} {n + k}" for axis in "TS" for n in (32, 128, 256, 512, 1024) for k in (-1, 0, 1)]
    wanted += ["T 1", "S 1", "scores in a head more than 2^16: True"]
    wanted += [f"poison {x}" for x in POISONED] + [f"poison move {x}" for x in ("query", "key", "value", "bias")]
    wanted += [f"poison {where} {kind}" for where in ("seen", "unseen") for kind in POISONS]
    assert not set(wanted) - seen


def plain(query, key, value, *, mask=None, bias=None, score_mod=None, scale=None, return_lse=False, **options):
    """A right attention for the mistakes below."""
    options |= {"mask": mask, "bias": bias, "score_mod": score_mod, "scale": scale, "return_lse": return_lse}
    return attention(query, key, value, **options | {"implementation": "dense"})


def leaks(query, key, value, *, mask=None, return_lse=False, scale=None, **options):
    """0 * NaN is NaN."""
    allowed = mask.to_dense(query.shape[-2], key.shape[-2]) if hasattr(mask, "to_dense") else mask
    k, v = (jnp.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) if x.ndim > 2 else x for x in (key, value))
    s = (query.shape[-1] ** -0.5 if scale is None else scale) * query @ k.swapaxes(-1, -2)
    if allowed is not None:
        s = jnp.where(allowed.reshape((1,) * (s.ndim - allowed.ndim) + allowed.shape), s, -1e30)
    return jax.nn.softmax(s) @ v


def with_out(found, change):
    """What attention returns, with or without lse, with another out."""
    return (change(found[0]), found[1]) if isinstance(found, tuple) else change(found)


def forgets_lse(*arrays, **options):
    found = plain(*arrays, **options)
    return (found[0], jax.lax.stop_gradient(found[1])) if isinstance(found, tuple) else found


def is_wrong_for_what_is_known(query, key, value, **options):
    """As a compiler that folds a constant wrongly."""
    return plain(query, key, value if isinstance(value, jax.core.Tracer) else 1.01 * value, **options)


def drops_the_last_key(query, key, value, **options):
    """Where tiles are ragged."""
    off = key.shape[-2] > 128 and key.shape[-2] % 2 == 1
    return plain(query, key, value.at[..., -1, :].multiply(0) if off else value, **options)


@jax.custom_jvp
def _same(x):
    return x


@_same.defjvp
def _same_jvp(primals, dots):
    (x,), (dx,) = primals, dots
    return x, dx * (1 + x - jax.lax.stop_gradient(x))


def is_wrong_at_second_order(*arrays, **options):
    """Its gradient is right, and the gradient of its gradient is not."""
    return with_out(plain(*arrays, **options), _same)


def is_off_where_scores_are_large(query, key, value, **options):
    """As a compiler was: of one head in all, without a mask, where a score is beyond 64, gradients of the query."""
    if options.get("mask") is None and query.size == query.shape[-2] * query.shape[-1] and query.shape[-2] > 8:
        largest = jax.lax.stop_gradient(abs(query @ key.swapaxes(-1, -2)).max()) * query.shape[-1] ** -0.5
        moved = query + 0.6 * (query - jax.lax.stop_gradient(query))
        query = jnp.where(largest > 64, moved, query)
    return plain(query, key, value, **options)


def is_a_little_off(*arrays, **options):
    """By more than a program must be, and by less than rounding alone explains in a long chain."""
    return with_out(plain(*arrays, **options), lambda x: x * jnp.asarray(1 + 12 * jnp.finfo(x.dtype).eps, x.dtype))


def hides_what_is_seen(*arrays, **options):
    """A NaN that counts becomes a number."""
    return with_out(plain(*arrays, **options), lambda out: jnp.where(jnp.isfinite(out), out, 0))


def is_plain(case):
    """Tell whether ``leaks`` can do it."""
    options = case.bias, case.modifier, case.lse, case.dropout
    return not any(options) and case.mask and not case.one_head and case.dtype == "float32" and case.values == "normal"


def is_one_head_with_large_scores(case):
    few = case.mask is None and case.bias is None and case.modifier is None and case.scale is None
    one = few and math.prod((*case.lead, case.N)) == 1 and case.T > 8 and case.S > 8 and case.D > 8
    return one and case.values == "normal" and (case.size or 0) > 30 and case.wanted == ("query", "key", "value")


MISTAKES = {
    leaks: (lambda c: is_plain(c) and c.poison, "L6"),
    is_off_where_scores_are_large: (
        lambda c: (
            is_one_head_with_large_scores(c) and c.direction in ("grad", "value_and_grad") and c.dtype == "float32"
        ),
        "L17",
    ),
    is_a_little_off: (lambda c: c.direction == "forward" and c.dtype == "float32" and c.lse != "alone", "L8"),
    hides_what_is_seen: (lambda c: c.poison[:2] == ("seen", "nan") and c.direction == "forward", "L6 seen"),
    forgets_lse: (lambda c: c.lse and c.direction in ("grad", "value_and_grad"), "L17"),
    is_wrong_for_what_is_known: (lambda c: "value" in c.known and c.direction == "forward", "L17"),
    drops_the_last_key: (lambda c: c.S > 128 and c.S % 2 and c.direction == "forward", "L17"),
    is_wrong_at_second_order: (lambda c: c.direction in ("fr", "rr", "rf") and c.loss == "weighted", "L17"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_a_planted_mistake_is_found(mistake):
    """Among the first few cases that concern it, which are of moderate size to save time."""
    concerns, law = MISTAKES[mistake]
    cases = some(12, lambda c: c.work < 2**14 and c.jit != "none" and concerns(c), seed=2)
    findings = (finding for case in cases for finding in judge(mistake, case).findings)
    assert any(finding.law == law for finding in findings)


@pytest.mark.slow
def test_the_mistakes_start_from_what_is_right():
    """Else anything would be found."""
    for case in some(4, lambda c: c.work < 500 and c.jit == "outer", seed=2):
        assert not judge(plain, case).findings


def test_a_failure_is_told_in_one_line_that_repeats_it(capsys):
    case = Case(direction="grad", lead=(2,), T=4, S=6, lse="sum", mask=("causal", 0), values="iota", seed=3)
    arguments = ["--attention", "test_random_driver:forgets_lse", "--case"]
    assert command.main([*arguments, repr(case)]) == 1
    told = capsys.readouterr().out
    assert f'python -m tests.fuzz --attention test_random_driver:forgets_lse --case "{case!r}"\n' in told
    assert "L17: query: off by" in told


def test_a_seed_repeats_its_round_and_a_failing_case_becomes_small_and_is_kept(tmp_path):
    told = [command.run_round(raises, 5, folder=str(tmp_path / name)) for name in ("one", "other")]
    assert told[0] == told[1]
    small = eval(re.search(r'--case "(.*)"\n', told[0])[1])
    assert small.work <= 2
    assert (small.mask, small.bias, small.maps, small.dropout) == (None, None, (), 0.0)
    assert command.run_round(raises, 6, count=1, folder=str(tmp_path / "one")) == told[0]


def raises(*arrays, **options):
    raise ValueError("nothing works")


def test_a_case_shrinks_to_what_matters():
    quick = hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck), database=None, max_examples=500)
    small = hypothesis.find(cases(), lambda c: c.T > 5 and c.bias is not None, settings=quick)
    assert small.T in (8, 12)  # the last length of the first group, or the first of the second
    assert (small.mask, small.modifier, small.maps, small.layers) == (None, None, (), False)


ROUNDING = {  # cases in which rounding alone is as large as a result
    # All keys that a query sees have the bias finfo.min: in float32 their scores of 1e28 are too small to matter.
    "a score beside the lowest bias is lost": Case(
        T=12, S=8, D=1, V=1, mask=("not", ("dense", (True, True))), bias=(False, False, True, True),
        bias_values="lowest", values="huge", seed=318),
    # It is 1 - tanh²: a unit in the last place of tanh is many of so small a number.
    "the derivative of a softcap that is reached": Case(
        direction="linearize", lead=(1,), T=2, S=2, D=1, V=1, dtype="float64", x64=True, modifier=("softcap", 0.8),
        scale=25.0, lse="square", loss="row", wanted=("query", "key", "value"), known=("mask",), seed=946),
    # A table of one number has the sum of 11,753 equal weights for its gradient.
    "weights are equal if the scale is 0": Case(
        direction="grad", lead=(2, 1, 2), T=23, S=511, D=1, V=1, modifier=("relative", 0, 0), scale=0.0, lse="sum",
        implementation="blockwise", maps=("scan",), shared=(("value", "query"),), layers=True),
    # The sum of what a layer norm centred depends on nothing: its gradient is rounding, in a plain formula also.
    "a sum of what is centred, at second order": Case(
        direction="rr", lead=(2, 3), N=6, G=2, T=1, S=200, D=80, V=80, values="eye", lse="square",
        wanted=("query", "value"), maps=("vmap",), shared=(("value",),), layers=True, jit="both", seed=402),
    "a sum of what is centred": Case(direction="value_and_grad", T=127, S=511, D=1, V=3, layers=True, seed=987),
    # A sum of 256 equal terms is off by 20 eps in XLA's own product, by 4 in NumPy's.
    "many queries of one key have equal terms": Case(direction="grad", T=256, S=1, D=1, loss="entropy"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_is_no_fault(name, capsys):
    assert command.main(["--case", repr(ROUNDING[name].without())]) == 0, capsys.readouterr().out


def gives_values_more(query, key, value, **options):
    """A gradient of the values that is off by as much as 1,024 equal terms could round."""
    return plain(query, key, _scaled(value), **options)


@jax.custom_jvp
def _scaled(x):
    return x


@_scaled.defjvp
def _scaled_jvp(primals, dots):
    return primals[0], dots[0] * (1 + 2.0**-15)


def test_more_than_rounding_is_a_fault():
    verdict = judge(gives_values_more, ROUNDING["many queries of one key have equal terms"].without())
    assert {finding.law for finding in verdict.findings} & {"L8", "L17"}


def depends_on_the_batch(query, *arrays, **options):
    """As a path whose tiles are chosen by the number of entries."""
    out, lse = attention(query, *arrays, **options)
    return out * jnp.asarray(1 + jnp.finfo(out.dtype).eps * query.shape[0], out.dtype), lse


@needs_library
def test_a_row_that_depends_on_the_batch_is_found():
    """By parts of a call, which find nothing in attention itself."""
    case = Case(lead=(3,), N=4, G=2, T=70, S=130, D=8, V=8, mask=("window", 20, 5), modifier=("alibi", 2), seed=3)
    arrays = data.leaves(case)
    assert list(rows.differences(attention, case, arrays, {})) == []
    assert any(what.startswith("out of Part(lead") for what in rows.differences(depends_on_the_batch, case, arrays, {}))


def test_attention_for_some_seconds(tmp_path):
    """Programs as users run them, at random: the seed is fresh, and a failure says how to repeat it."""
    ran = []

    def counted(*arrays, **options):
        ran.append(1)
        return attention(*arrays, **options)

    seed = time.time_ns() // 1000 % 2**31
    told = command.run_round(counted, seed, end=time.monotonic() + SECONDS, folder=str(tmp_path))
    assert not told, told
    assert ran
