"""The kit itself: what it judges with, how it takes other layouts and conventions, and what it may not look at."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import right_attention
from attendax.conformance import CASES, Implementation, Verdict, assert_conforms, checking
from attendax.conformance.adapters.implementation import OPTIONS
from attendax.conformance.cases import Inputs
from attendax.conformance.frameworks import framework
from attendax.conformance.judge import dense
from attendax.conformance.judge.tolerances import dense_errors
from attendax.conformance.judge.trial import Trial
from libraries import ADAPTERS, implementation
from planted import by_law
from stated import check

LAWS = {f"L{k}" for k in range(1, 18)}
KIT = Path(checking.__file__).parent


pytestmark = pytest.mark.usefixtures("as_users_have_it")


def right(**settings):
    return by_law(right_attention.attend, arrays="numpy", backward=right_attention.backward, **settings)


def case_of(name):
    return next(case for case in CASES if case.name == name)


# The cases


def test_every_case_has_a_name_of_its_own_and_a_law():
    assert len(CASES) >= 150
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.law for case in CASES} <= LAWS
    assert all(case.about for case in CASES)


def test_right_is_what_the_specification_says_and_nothing_else():
    """No module of the kit imports ops or kernels; an adapter's function may, when it runs."""
    for path in KIT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names = names if names[-1:] != ["keras"] else []  # which has a module ops, too
            assert not any(word in name.split(".") for name in names for word in ("ops", "kernels")), path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "seed"),
    [("bfloat16", 1), ("float16", 2), ("float64", 3)],
)
def test_what_is_right_is_right_in_every_dtype_whatever_the_numbers(dtype, seed):
    """In float32, with the numbers of seed 0, test_conformance_mistakes says it."""
    assert [outcome.case.name for outcome in right(dtype=dtype, seed=seed).failures] == []


@pytest.mark.slow
def test_the_specification_is_right():
    report = by_law(implementation("attendax-spec"))
    assert report.ok
    assert report.counts().keys() == {"ok", "not offered"}


@pytest.mark.slow
def test_the_function_of_this_package_is_right():
    """What no other test asks of it; all cases are in benchmarks/results."""
    only = ["dropout", "second order: lse", "bias of finfo.min", "inputs are not", "apart"]
    report = by_law(implementation("attendax"), only=only)
    assert [(outcome.case.name, outcome.finding.message) for outcome in report.failures] == []
    assert report.counts().keys() == {"ok"}


@pytest.mark.slow
def test_tolerances_are_those_of_the_dense_formula():
    """No leaf may be so far off that nothing could fail, one that is 0 in truth least of all."""
    for case in CASES:
        if case.judge == "value" and case.dtype is None:
            errors = dense_errors(case, 0, "float32", draws=1)
            most = 2e-5 if "logits to 100" in case.name else 2e-6  # a weight is uncertain by eps times its score
            assert all(error < most for error in errors.values()), case.name
    found = by_law(implementation("attendax-spec"), only=["plain"], level="forward").cases[0].finding
    two_units = 2 * np.finfo(np.float32).eps  # where the dense formula happens to be nearer
    assert 0 < found.error <= found.allowed == max(2 * found.dense_error, two_units) < 1e-6


def test_a_large_case_with_one_head_is_drawn_more_than_once():
    """The error of one draw may be small by chance; then a right function would be accused."""
    (case,) = (case for case in CASES if case.name == "gradient: in blocks: causal, 1100")
    one, more = (dense_errors(case, 0, "float32", draws=draws)["grad key"] for draws in (1, 6))
    assert more > 1.5 * one


# What is judged


def formula(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
    return jax.nn.softmax(scores) @ v


MASKED = ["mask (T, S)", "mask (B, N", "mask (1, N", "mask (1, S)", "plain"]


def test_an_lse_of_base_2():
    """It is described; of what is not, ``expect`` says so."""

    def with_lse(query, key, value, *, return_lse=False):
        out, lse = right_attention.attend(query, key, value, return_lse=True)
        return (out, lse / np.float32(np.log(2))) if return_lse else out

    given = {"only": ["lse, grouped heads"], "level": "forward"}
    assert by_law(with_lse, **given).ok
    made = Implementation(with_lse, "with_lse", "numpy")
    assert not by_law(made, **given).ok
    assert by_law(made, expect={"lse": "base 2"}, **given).ok


def test_a_mask_in_which_true_drops():
    def drops(query, key, value, *, mask=None):
        return right_attention.attend(query, key, value, mask=None if mask is None else ~mask)

    made, given = Implementation(drops, "drops", "numpy"), {"only": ["mask (T, S)"], "level": "forward"}
    assert not by_law(made, **given).ok
    assert by_law(made, expect={"mask": "True drops"}, **given).ok


@pytest.mark.parametrize("arrays", ["numpy", "jax"])
def test_the_kind_of_arrays_is_found(arrays):
    fn = right_attention.attend if arrays == "numpy" else formula
    assert by_law(fn, only=["plain"], level="forward").arrays == arrays


def test_a_function_that_jax_may_not_compile_is_judged_and_told():
    def branching(query, key, value):
        return formula(query, key, value) if query.sum() < 1e9 else query

    report = by_law(branching, only=["plain", "eager"], level="forward")
    assert report.counts() == {"ok": 4}  # plain in three sizes


@pytest.mark.smoke
def test_a_fault_without_optimizations_alone_is_none(monkeypatch, no_causes):
    """A small JAX call is compiled with few optimizations; the first fault is judged again with all of them."""

    def wrong(function, arrays):
        return lambda *given, **more: {k: x + 1 for k, x in function(*given, **more).items()}

    monkeypatch.setattr(framework("jax"), "cheaply", wrong)
    some = {"arrays": "jax", "only": ["plain", "one query"], "level": "forward", "in_process": True}
    assert check(formula, **some).ok
    assert assert_conforms(formula, case_of("plain"), in_process=True).verdict is Verdict.OK
    monkeypatch.setattr("attendax.conformance.run.run.confirmed", lambda made, outcome, how: (made, outcome))
    assert not check(formula, **some).ok


@pytest.mark.smoke
def test_a_small_jax_call_is_compiled_with_few_optimizations():
    driver = framework("jax")
    small, large = ({"query": np.zeros(n, np.float32)} for n in (8, driver.SMALL_SIZE + 1))
    long = {name: np.zeros((2**14, 1), np.float32) for name in ("query", "key", "value")}
    assert driver.cheaply(driver.forward, large) is driver.forward
    assert driver.cheaply(driver.forward, long) is driver.forward
    assert driver.cheaply(driver.eager, small) is driver.eager
    assert driver.cheaply(driver.forward, small).keywords["jit"] is driver.cheap_jit


def test_a_function_that_fails_on_everything_is_refused():
    with pytest.raises(ValueError, match=r"fails on the plainest call(.|\n)*jax(.|\n)*numpy"):
        by_law(lambda query, key, value: query @ "?")


def causal_to_the_end(query, key, value, *, is_causal=False):
    T, S = query.shape[-2], key.shape[-2]
    return right_attention.attend(query, key, value, mask=np.tri(T, S, S - T, dtype=bool) if is_causal else None)


ALIGNED = ["causal, fewer queries", "causal, more queries"]
END, DECODE = {"causal": "end"}, {"causal": "decode"}


def test_a_declared_convention_is_told_apart_from_a_fault():
    given = {"arrays": "numpy", "only": ALIGNED, "level": "forward"}
    assert by_law(causal_to_the_end, **given).counts() == {"wrong": 2}
    report = by_law(causal_to_the_end, means=END, **given)
    assert report.ok
    assert report.counts() == {"differs by convention": 2}


def test_a_declared_causal_end_is_required():
    """Where T = S both are the same; elsewhere the start is a fault, in results and gradients."""
    given = {"arrays": "numpy", "means": END, "backward": right_attention.backward}
    report = by_law(right_attention.attend, only=ALIGNED, **given)
    assert report.counts().keys() == {"wrong"}
    assert [(x.name, x.remedy) for x in report.causes] == [
        ("causal is aligned to the start of the keys", '--expect "causal=aligned to the start"')
    ]
    assert by_law(right_attention.attend, only=["causal"], level="forward", sizes={"T": 8, "S": 8}, **given).ok


def decoding(query, key, value, *, is_causal=False):
    return right_attention.attend(query, key, value, is_causal=is_causal and query.shape[-2] > 1)


def test_a_single_query_that_sees_all_keys_is_a_convention_of_its_own():
    given = {"arrays": "numpy", "only": ["causal, one query", *ALIGNED], "level": "forward"}
    report = by_law(decoding, **given)
    assert [(x.name, x.remedy) for x in report.causes] == [
        (
            "a single query (T = 1) sees all keys: causal is left out there",
            '--expect "causal=aligned to the start, and a single query sees all"',
        )
    ]
    assert by_law(decoding, means=DECODE, **given).counts() == {"ok": 2, "differs by convention": 1}
    for fn, declared in ((decoding, END), (right_attention.attend, DECODE), (causal_to_the_end, DECODE)):
        assert not by_law(fn, means=declared, **given).ok


@pytest.mark.smoke
def test_a_fault_of_who_declares_the_end_is_told_beside_the_end():
    def loud(query, key, value, *, is_causal=False):
        return 1.5 * causal_to_the_end(query, key, value, is_causal=is_causal)

    for outcome in by_law(loud, arrays="numpy", means=END, only=ALIGNED[:1], level="forward").cases:
        assert outcome.verdict is Verdict.WRONG
        assert outcome.finding.got == pytest.approx(1.5 * outcome.finding.expected, rel=1e-5)


def mean_where_empty(query, key, value, *, mask=None):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    scores = scores if mask is None else np.where(mask, scores, -1e30).astype(query.dtype)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True) @ value


def test_the_mean_for_an_empty_row_is_a_convention_only_where_declared():
    given = {"arrays": "numpy", "only": ["empty row by a mask", "all rows"], "level": "forward"}
    assert by_law(mean_where_empty, **given).counts() == {"wrong": 2}
    assert by_law(mean_where_empty, means={"empty": "mean"}, **given).counts() == {"differs by convention": 2}
    assert by_law(mean_where_empty, means={"empty": "nan"}, **given).counts() == {"wrong": 2}


def test_not_offered_is_no_pass():
    report = by_law(
        lambda query, key, value: right_attention.attend(query, key, value), arrays="numpy", only=["softcap"]
    )
    assert report.counts().keys() == {"not offered"}
    assert not report.ok


def test_a_declared_lack_is_not_offered_and_an_unknown_one_is_refused():
    given = {"arrays": "jax", "only": ["mask with grouped heads"], "level": "forward"}
    assert by_law(formula, **given).counts() == {"obscure error": 1}
    assert by_law(formula, lacks={"grouped heads": "one for each"}, **given).counts() == {"not offered": 1}
    with pytest.raises(ValueError, match=r"lacks got 'heeds', expected some of .*grouped heads"):
        by_law(formula, lacks={"heeds": ""}, **given)


def test_not_implemented_is_not_offered_and_any_other_error_is_a_fault():
    def picky(query, key, value, *, scale=None):
        if scale is not None:
            raise {0.3: NotImplementedError, 0.0: KeyError}.get(scale, ZeroDivisionError)("no scale")
        return right_attention.attend(query, key, value)

    report = by_law(picky, arrays="numpy", only=["scale "], level="forward")
    assert [str(o.verdict) for o in report.cases[:3]] == ["not offered", "obscure error", "obscure error"]


# How a fault is told


@pytest.mark.smoke
def test_an_ignored_argument_and_a_gradient_of_zeros_are_told():
    def forgetful(query, key, value, *, bias=None, window=None):
        return right_attention.attend(query, key, value)

    report = by_law(forgetful, arrays="numpy", only=["window to the left", "bias (1, N, T, S)"], level="forward")
    assert [str(o.verdict) for o in report.cases] == ["silent", "silent"]
    assert "as if window were not given" in report.cases[0].finding.message

    def backward(grad_output, query, key, value, **options):
        grads = right_attention.backward(grad_output, query, key, value, **options)
        return [0 * x if k == 3 else x for k, x in enumerate(grads)]

    only = ["gradient: bias (1"]
    report = by_law(right_attention.attend, arrays="numpy", backward=backward, only=only, level="gradient")
    assert [(str(o.verdict), o.finding.message) for o in report.cases] == [("silent", "grad bias is all zeros")]


FAULTS = {
    "wrong": ("scale given", lambda q, k, v, *, scale=None: formula(q, k, v)),
    "NaN": ("empty row by a mask", formula),
    "leak": ("leak: NaN in a masked value", formula),
    "gradient leak": ("leak: gradient: NaN in a masked key", formula),
    "error": ("grouped heads", formula),
    "jvp": ("jvp: plain", lambda q, k, v: formula(jax.lax.stop_gradient(q), k, v)),
    "second order": ("second order: reverse over reverse", lambda q, k, v: formula(jax.lax.stop_gradient(q), k, v)),
    "dropout": ("dropout: share", lambda q, k, v, *, dropout_rate=0.0, dropout_rng=None: formula(q, k, v)),
    "lse": ("lse", lambda q, k, v, *, return_lse=False: (formula(q, k, v), 0 * q[..., 0])),
    "float64": ("float64", lambda q, k, v: formula(*(x.astype("float32") for x in (q, k, v))).astype(q.dtype)),
    "loss": ("gradient of a loss: sum, 1, 12, 64, 16", lambda q, k, v: formula(jax.lax.stop_gradient(q), k, v)),
    "constant": ("gradient: query of ones, 64", lambda q, k, v: formula(q, jax.lax.stop_gradient(k), v)),
    "weights": ("gradient: weights known, 64", lambda q, k, v: formula(q, jax.lax.stop_gradient(k), v)),
    "in place": ("mask changed in place", lambda q, k, v, *, mask=None: formula(q, k, v)),
    "in blocks": ("in blocks: mask (B, 1, 1, S), 300", lambda q, k, v, *, mask=None: formula(q, k, v)),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_reproduction_fails_alone_in_a_fresh_python(kind, tmp_path):
    """It is pasted into a file, knows nothing of attendax, and ends in an error."""
    name, fn = FAULTS[kind]
    header = "import jax\nimport jax.numpy as jnp\n\n\n"
    source = header + checking_source(formula) + "\n\n\nattend = " + lambda_source(fn)
    outcome = checking.judge(Implementation(fn, kind, source=source), case_of(name))
    assert outcome.verdict.fails
    assert "attendax" not in outcome.reproduction.replace("# attendax", "")
    script = tmp_path / "reproduction.py"
    script.write_text(outcome.reproduction)
    run = subprocess.run([sys.executable, "-P", script], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1, run.stdout + run.stderr
    last = run.stderr.strip().splitlines()[-1]
    assert "AssertionError" in last or outcome.verdict is Verdict.OBSCURE, run.stderr


def checking_source(function):
    return inspect.getsource(function)


def lambda_source(function):
    """The text of a lambda of ``FAULTS``, or the name of the formula."""
    if function is formula:
        return "formula"
    text = inspect.getsource(function).strip().rstrip(",")
    return text[text.index("lambda") :].rstrip(")") + (")" if text.count("(") > text.count(")") - 1 else "")


NOWHERE = ["batches apart", "leak: NaN in a masked value", "dropout: share"]


@pytest.mark.smoke
@pytest.mark.parametrize("name", NOWHERE)
def test_one_nan_of_ordinary_inputs_is_a_fault_whatever_is_asked(name):
    """A NaN is on no side of a bound, and equal to a NaN of the call that it is compared with."""

    def with_a_nan(query, key, value, *, mask=None, dropout_rate=0.0, dropout_rng=None):
        options = dict(mask=mask, dropout_rate=dropout_rate, dropout_rng=dropout_rng)
        out = right_attention.attend(query, key, value, **options)
        out[0, 1, 2, 3] = np.nan
        return out

    finding = checking.judge(Implementation(with_a_nan, "", arrays="numpy"), case_of(name)).finding
    assert finding.verdict is Verdict.NAN
    assert "at 1 of" in finding.message


def test_nan_in_a_query_without_keys_is_no_leak_where_it_is_declared():
    def nan_where_empty(query, key, value, *, mask=None):
        out, lse = right_attention.attend(query, key, value, mask=mask, return_lse=True)
        return np.where(lse[..., None] == -np.inf, np.nan, out)

    given = {"arrays": "numpy", "only": ["leak: a query without keys"], "level": "forward"}
    with np.errstate(divide="ignore"):
        assert by_law(nan_where_empty, **given).counts() == {"NaN": 1}
        assert by_law(nan_where_empty, means={"empty": "nan"}, **given).counts() == {"ok": 1}


# What surrounds a call


def test_a_constant_is_known_to_the_compiler_and_an_argument_is_not():
    """What is closed over reaches what is compiled as a literal or as an expression of nothing but literals."""
    for name in ("value of ones, 197", "key of ones, 64", "value of positions, 64", "query of identity, 64"):
        case = case_of(name)
        trial = Trial(Implementation(formula, ""), case)
        in_jax = framework("jax")
        known = {k: trial.inputs.arrays[k] for k in case.constants}
        closed = in_jax.closing_over(formula, case.constants, known)
        arrays = {k: x for k, x in trial.inputs.arrays.items() if k not in known}
        lowered = in_jax.compiled(jax.jit).lower(in_jax.call, closed, (), None, arrays, {})
        assert len(lowered.in_avals[0][0]) == 2, name
        made = in_jax.made(case.constants[next(iter(known))], next(iter(known.values())))
        np.testing.assert_array_equal(made, next(iter(known.values())))


@pytest.mark.smoke
@pytest.mark.parametrize("how", ["sum", "mean", "a row"])
def test_the_cotangents_that_a_case_gives_are_those_of_its_loss(how):
    case = next(case for case in CASES if case.direction == f"gradient of a loss, {how}")
    inputs = case.inputs(0, "float32")
    out = jnp.zeros(inputs.extra["cotangent"].shape)
    found = jax.grad(lambda out: framework("jax").loss_of({"out": out}, how))(out)
    np.testing.assert_allclose(found, inputs.extra["cotangent"], rtol=1e-6)


# Adapters


def test_adapters_offer_only_keywords_of_the_protocol():
    assert len(ADAPTERS) >= 13
    for name, adapter in ADAPTERS.items():
        named = [p.name for p in inspect.signature(adapter.call).parameters.values() if p.kind is p.KEYWORD_ONLY]
        keywords = adapter.offers.split() or named
        assert set(keywords) <= {*OPTIONS, "implementation", "need_weights", "serialized"}, name
        assert adapter.offers or set(adapter.options) <= set(named), name
        assert adapter.arrays in ("jax", "torch", "numpy"), name
        assert adapter.function.count(":") == 1, name


@pytest.mark.smoke
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["attendax", "attendax-spec"])
@pytest.mark.parametrize("more", [{}, {"is_causal": True, "window": (3, None), "key_lengths": np.array([5, 6])}])
def test_all_that_forbids_counts_at_once(name, more, rng):
    query, key, value = (
        rng.standard_normal(shape).astype("float32") for shape in ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))
    )
    ids = np.array([[0, 0, 1, 1, 1]] * 2), np.array([[0, 0, 0, 1, 1, 1, 1]] * 2)
    mask = rng.random((5, 7)) < 0.8
    options = {"mask": mask, "query_segment_ids": ids[0], "key_segment_ids": ids[1]} | more
    found = implementation(name).attend(query, key, value, **options)
    with np.errstate(divide="ignore"):  # the lse of a query without any key
        wanted = right_attention.attend(query, key, value, **options)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_numbers_of_a_case_are_its_text():
    case = case_of("gradient: lse and a bias")
    space = {}
    exec(case.text(0, "float32"), space)
    trial = Trial(Implementation(right_attention.attend, "", arrays="numpy"), case)
    for name, x in trial.inputs.arrays.items():
        np.testing.assert_array_equal(space[name], x)


def test_the_formula_of_jax_has_the_queries_of_a_group_side_by_side():
    """As the functions of JAX have it; with keys and values repeated, its gradients would round less than theirs."""
    inputs = case_of("grouped heads")._replace(sizes={"N": 6, "G": 2, "T": 5, "S": 7}).inputs(0, "float32")
    repeated = (2, 6, 7, 4)

    def formula(arrays):
        return dense.forward(Inputs(arrays, inputs.options, inputs.extra), jnp)["out"]

    shapes = {x.aval.shape for equation in jax.make_jaxpr(formula)(inputs.arrays).eqns for x in equation.outvars}
    assert repeated not in shapes
    assert (2, 2, 7, 4) in {x.shape for x in inputs.arrays.values()}
    assert np.allclose(formula(inputs.arrays), dense.forward(inputs)["out"], atol=1e-6)


@pytest.mark.smoke
def test_a_masked_weight_that_dropout_keeps_has_words_of_its_own():
    def attend(query, key, value, *, mask=None, dropout_rate=0.0, dropout_rng=None):
        mask = None if dropout_rate else mask
        return right_attention.attend(query, key, value, mask=mask, dropout_rate=dropout_rate, dropout_rng=dropout_rng)

    names = [c.name for c in CASES if c.judge == "dropped" and "mask=" in c.call and c.level == "forward"]
    report = check(attend, arrays="numpy", only=names, seed=0, budget=0, in_process=True)
    assert names
    assert {outcome.finding.message.partition(":")[0] for outcome in report.failures} == {
        "what no query looks at is kept"
    }


@pytest.mark.smoke
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_one_array_stays_one_in_another_layout(arrays):
    """Three views of one memory: a function that writes to its query writes to the key, as its users would see."""
    pytest.importorskip(arrays)
    seen = []

    def attend(query, key, value, *, is_causal=False):
        seen.append(len({place_of[arrays](x) for x in (query, key, value)}) == 1)
        q, k, v = (x.swapaxes(1, 2) for x in (query, key, value))
        return right_of[arrays](q, k, v, is_causal).swapaxes(1, 2)

    right_of = {
        "numpy": lambda q, k, v, causal: right_attention.attend(q, k, v, is_causal=causal),
        "torch": lambda q, k, v, causal: __import__("torch").nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal
        ),
    }
    place_of = {"numpy": lambda x: x.__array_interface__["data"][0], "torch": lambda x: x.data_ptr()}
    given = {"seed": 0, "budget": 0, "in_process": True, "repeat": 1}
    report = check(attend, only=["one array for query, key and value"], **given)
    assert report.ok
    assert report.counts() == {"ok": 2} if arrays == "torch" else {"ok": 1, "not offered": 1}
    assert any(seen)


def test_a_case_of_the_ladder_is_asked_by_its_name():
    name = "ladder: key lengths and lse, normal, every second token, B=2 N=4 G=2 T=80 S=100 D=48 V=32"
    report = check(right_attention.attend, arrays="numpy", only=[name], profile="numbers", seed=0, in_process=True)
    assert [outcome.case.name for outcome in report.cases] == [name]
    assert report.ok
