"""Conventions as one table: the formula by the law is the specification, and functions made of it are named exactly."""

import functools
import itertools

import numpy as np
import pytest

import right_attention
import stated
from attendax.conformance.adapters.implementation import Implementation
from attendax.conformance.against import comparing, diff, remote
from attendax.conformance.against import report as against
from attendax.conformance.cases import CASES
from attendax.conformance.cases import named as named_case
from attendax.conformance.cases.case import Inputs
from attendax.conformance.cases.how import How
from attendax.conformance.conventions import formula, right
from attendax.conformance.conventions.search import fitting
from attendax.conformance.conventions.table import BACKWARD_AXES, IGNORED, SLOPES, TABLE, python
from attendax.conformance.conventions.values import LAW, written
from attendax.conformance.diagnoses import by_running
from attendax.conformance.diagnoses.causes import Faults
from attendax.conformance.diagnoses.explaining import Greens, way_of
from attendax.conformance.diagnoses.hypothesis import of_table
from attendax.conformance.diagnoses.unexplained import LEAKS
from attendax.conformance.judge.verdicts import Finding, Verdict
from attendax.conformance.report.outcomes import Harm, Outcome
from planted import SOURCE, Mistake, planted

check = functools.partial(stated.check, seed=0, budget=0, in_process=True)
KEPT = ("value", "held")  # judges of numbers
SMALL = [
    case for case in CASES
    if case.judge in KEPT and "NaN" not in case.name and "inf" not in case.lines and case.leading != "AB"
    and np.prod([{"B": 2, "N": 3, "T": 5, "S": 7, **case.sizes}[axis] for axis in "BNTS"]) <= 2**18
]  # fmt: skip


@pytest.mark.smoke(9)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_by_the_law_the_formula_is_the_specification(case):
    inputs = case.inputs(0, "float64")
    with np.errstate(all="ignore"):
        wanted = right.leaves(inputs, case.direction)
    got = right.by_conventions(inputs, case.direction, LAW)
    assert wanted.keys() == got.keys()
    moves = case.direction.startswith(("jvp", "second"))  # differences of numbers that are off by a rounding
    tree = max((np.abs(x[np.isfinite(x)]).max(initial=0) for x in wanted.values()), default=0)
    for leaf, x in wanted.items():
        near = 1e-8 if moves else 1e-12
        np.testing.assert_allclose(got[leaf], x, rtol=near, atol=near * max(tree, 1e-300), err_msg=leaf)


@pytest.mark.smoke
def test_every_line_runs_and_says_something():
    """Each is evaluated in some case, and gives something else than the law there."""
    for axis, values in TABLE.items():
        first, *others = values
        for value in others:
            form = LAW.but(**{axis: value})
            assert form.line(axis).words
            assert form.value(axis) == value
            assert form.off == ((axis, value),)
            assert form.but(**{axis: first}) == LAW
        for text in {line.text for line in values.values()} if axis == "softcap" else ():
            assert text in SLOPES


@pytest.mark.smoke
def test_a_number_is_written_as_one_reads_it():
    assert python("1/√(3·D)") == "1/(3 * D) ** 0.5"
    for number, powers, words in (
        (1.0, {"D": -0.5}, "1/√D"), (3**-0.5, {"D": -0.5}, "1/√(3·D)"), (1.4852, {"D": -0.5}, "1.4852/√D"),
        (1.0, {}, "1"), (0.125, {}, "1/√64"), (1.0, {"N": -0.5, "D": -0.5}, "1/√(N·D)"), (1.0, {"D": 0.5}, "√D"),
        (1.0, {"D": -1.0}, "1/D"), (1.0, {"given": 2.0}, "given²"), (2.0, {"D": -0.5}, "2/√D"),
    ):  # fmt: skip
        assert written(number, powers) == words
        known = {"N": 3, "D": 4, "given": 0.3}
        wanted = number * np.prod([known[axis] ** power for axis, power in powers.items()])
        assert eval(python(words), known) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.smoke
def test_the_search_gives_the_fewest_changes_that_explain_all():
    """Changes count in some results: "a" in one, "a" and "b" in the other, "c" nowhere."""
    counts = {"one": {"a"}, "other": {"a", "b"}, "right": set()}
    true = {("a", "x"), ("b", "y")}

    def explain(changes, result):
        return {x for x in changes if x[0] in counts[result]} == {x for x in true if x[0] in counts[result]}

    def here(result):
        return [(axis, value) for axis in "abc" for value in "xyz" if axis in counts[result]]

    for results in (["one", "other"], ["other", "one"], ["right", "other"]):
        assert list(fitting(results, here, explain, 2)) == [true]
        assert list(fitting(results, here, explain, 1)) == []
    assert list(fitting(["one"], here, explain, 2)) == [{("a", "x")}]
    assert list(fitting(["right"], here, explain, 2)) == [set()]


# Functions of a form, as the formula has them.


def of_form(form):
    """A function of NumPy that computes by a form."""

    def attend(
        query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
        key_lengths=None, query_segment_ids=None, key_segment_ids=None, offset=None, return_lse=False,
    ):  # fmt: skip
        found = formula.forward(_inputs(locals(), query), form)
        narrow = [found[leaf].astype(query.dtype) for leaf in ("out", "lse") if leaf in found]
        return tuple(narrow) if return_lse else narrow[0]

    return attend


def _inputs(given, query):
    arrays = {name: given[name] for name in ("query", "key", "value", "bias") if given.get(name) is not None}
    names = ("mask", "is_causal", "scale", "softcap", "window", "key_lengths", "query_segment_ids", "key_segment_ids")
    options = {name: given[name] for name in (*names, "offset", "return_lse") if given.get(name) is not None}
    return formula.Inputs(arrays, options, {})


FORWARD = [(axis, value) for axis, values in TABLE.items() if axis not in BACKWARD_AXES for value in list(values)[1:]]


def words(form):
    """What may be said of a form: values of the same words are one."""
    return {form.line(axis).words for axis, _ in form.off}


VAGUE = (*LEAKS, "the result is ", "lse is wrong", "a legal call ", "wrong only where ")  # true, and no reasons
SAYABLE = {line.words for values in TABLE.values() for line in values.values() if line.words}


def named(form):
    report = check(of_form(form), arrays="numpy", level="forward", profile="robust")
    names = {name for cause in report.causes for name in cause.name.split("; ")}
    vague = {name for name in names if name.startswith(VAGUE)}
    return names - vague, report


SINGLE = [(axis, value) for axis, value in FORWARD if axis != "width"]  # whose cases are wider than small ones
UNNAMED = {("causal", "without the block of 512")}  # whose cases are longer than those that causes are sought for
QUICK = [
    ("causal", "j <= i + 3"), ("empty", "the mean of the values"), ("mask", "first head"), ("mask", "first batch"),
    ("given_scale", "1.5·given"),
]  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize(("axis", "value"), QUICK, ids=str)
def test_one_value_is_named(axis, value):
    form = LAW.but(**{axis: value})
    said, _ = named(form)
    assert said == words(form)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("values", "is_refuted"), [(("pairs", "one whole block of 64"), False), (("scale", "1/D"), True)]
)
def test_a_right_result_refutes_a_reason_that_its_tolerance_does_not_hide(values, is_refuted):
    """Of 4,097 keys the first leaves out one."""
    made, case = Implementation(right_attention.attend, "right", arrays="numpy"), named_case("long row")
    right = Outcome(case, Finding(Verdict.OK, error=0.0, allowed=1e-4), 0.0, "")
    (reason,) = [x for x in of_table({}) if x.values == (values,)]
    with by_running.patience(60.0):
        assert Greens(Faults(made, How(seed=0), [], [right])).refute(reason, way_of(case)) is is_refuted


# Functions that are one line off, in both commands.


def one_line_off(rule="j <= i", scale="D**-0.5", read="mask", tail="out"):
    def attention(query, key, value, *, mask=None, is_causal=False, bias=None):
        (N, T, D), S, V = query.shape[-3:], key.shape[-2], value.shape[-1]
        known = {"np": np, "N": N, "T": T, "D": D, "S": S, "V": V, "query": query}
        known |= {"i": np.arange(T)[:, None], "j": np.arange(S), "n": np.arange(N)[:, None, None]}
        scores = query @ key.swapaxes(-1, -2) * np.float32(eval(scale, known)) + (0 if bias is None else bias)
        seen = np.ones((1, 1, T, S), bool) if mask is None else eval(read, known | {"mask": mask})
        seen = seen & eval(rule, known) if is_causal else seen
        scores = np.where(seen, scores, -np.inf)
        largest = scores.max(-1, keepdims=True)
        powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = powers.sum(-1, keepdims=True)
        return eval(tail, known | {"out": powers / np.where(total == 0, 1, total) @ value})

    return attention


ODD = {  # lines that are no convention, and what is said of them
    "j <= i + (S - T) // 2": ("rule", "some queries see keys that they may not"),
    "j <= i + n": ("rule", "some queries see keys that they may not"),
    "j <= 2 * i": ("rule", "some queries see keys that they may not"),
    "(j <= i) & (j >= i - 3)": ("rule", "some queries do not see some keys"),
    "mask | (n == 1)": ("read", ""),
    "1 / (D + 1)": ("scale", "the result is wrong"),
    "out + query[..., :1] / 100": ("tail", "the result is wrong"),
    "1.01 * out": ("tail", "out: 1.01 times what is right"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("line", ODD)
def test_no_reason_is_false(line):
    place, words = ODD[line]
    report = check(one_line_off(**{place: line}), arrays="numpy", level="forward", repeat=1)
    assert report.causes
    said = [(cause.name, cause.tried) for cause in report.causes]
    assert all(tried == 0 and words in name for name, tried in said), said


@pytest.mark.smoke(1)
@pytest.mark.parametrize(
    ("which", "power", "words"),
    [
        (0, -1, "the gradient of the queries is not multiplied by the scale"),
        (1, -1, "the gradient of the keys is not multiplied by the scale"),
        (1, 1, "the gradient of the keys is multiplied by the scale twice"),
    ],
)
@pytest.mark.parametrize("only", [["gradient: plain"], ["gradient: plain", "gradient: one", "gradient: grouped"]])
def test_a_scale_of_one_gradient_is_not_that_of_both(which, power, words, only):
    def backward(grad_output, query, key, value, **options):
        found = list(right_attention.backward(grad_output, query, key, value, **options))
        given = options.get("scale")
        found[which] = found[which] * np.float32(query.shape[-1] ** -0.5 if given is None else given) ** power
        return found

    report = check(right_attention.attend, backward=backward, arrays="numpy", level="backward", only=only)
    assert [(cause.name, cause.harm) for cause in report.causes] == [(words, Harm.GRADIENTS)]


WEIGHTED = "weights * (dweights - delta)"  # the gradient of the scores
OF_BACKWARDS = [  # what is written in place of what, and what is said of it
    (WEIGHTED, "weights * dweights", "dS = P · dP: the row sum of P · dP is not subtracted"),
    (WEIGHTED, "weights * (dweights - (dweights * weights).sum(axis=-2, keepdims=True))", "delta is summed over the q"),
    (WEIGHTED, "dweights - delta", "dS = dP - delta: it is not multiplied by the weights"),
    (WEIGHTED, "weights * dweights - delta", "dS = P · dP - delta: delta is not multiplied by the weights"),
    (WEIGHTED, "weights * (1 - weights) * dweights", "dS = P · (1 - P) · dP: the derivative of each weight by its own"),
    ("S, width).sum(axis=-3)", "S, width).mean(axis=-3)", "gradients of keys and values are the mean over the heads"),
]


@pytest.mark.parametrize(("old", "new", "words"), OF_BACKWARDS)
def test_a_backward_that_is_one_line_off_is_named(old, new, words):
    wrong = planted(SOURCE, Mistake("gradient: plain", old, new))
    report = check(wrong["attend"], backward=wrong["backward"], arrays="numpy", level="backward", profile="numbers")
    assert len(report.causes) == 1
    assert report.causes[0].name.startswith(words)


ONE_LINE_OFF = {  # what check says, and what diff says of it beside the right one
    "j <= i + 1": ("causal lets a query see one key ahead (j <= i + 1)", "and one key ahead: j <= i + 1"),
    "j < i + S - T": (
        "causal is aligned to the end of the keys, without a query's own key (j < i + S - T)",
        "aligned to the end, without its own key: j < i + S - T",
    ),
    "j <= i + S - T": ("causal is aligned to the end of the keys", "aligned to the end: j <= i + S - T"),
    "N**-0.5": ("the scale is 1/√N", "1/√N"),
    "S**-0.5": ("the scale is 1/√S", "1/√S"),
    "64**-0.5": ("the scale is 1/√64, whatever D is", "1/√64"),
    "1 / D": ("the scale is 1/D", "1/D"),
    "(3 * D) ** -0.5": ("the scale is 1/√(3·D)", "1/√(3·D)"),
    "1.4852 * D**-0.5": ("the scale is 1.4852/√D", "1.4852/√D"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("line", ONE_LINE_OFF)
def test_both_commands_name_the_line(line):
    fn = one_line_off(**{"rule" if line.startswith("j") else "scale": line})
    by_check, by_diff = ONE_LINE_OFF[line]
    report = check(fn, arrays="numpy", level="forward")
    assert [cause.name for cause in report.causes] == [by_check]
    found = diff(one_line_off(), fn)
    assert str(found.differences[0]).endswith(by_diff), found.text()
    assert found.explained, found.text()


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "value"), SINGLE, ids=str)
def test_every_value_is_named(axis, value):
    form = LAW.but(**{axis: value})
    said, report = named(form)
    assert report.failures  # each value is wrong in some case
    line = form.line(axis)
    remedies = {cause.remedy for cause in report.causes if cause.name == line.words}
    assert value == IGNORED or remedies <= {line.flag.format(axis=axis, value=value)}
    own = {name for name in said if "ZeroDivisionError" in name and (axis, value) == ("given_scale", "divides")}
    assert said - own == (set() if (axis, value) in UNNAMED else words(form))  # where a given scale divides, 0 raises


def compared(form):
    """What ``diff`` says of the function by the law beside that of a form."""
    one, other = (remote.Function(of_form(x), in_process=True) for x in (LAW, form))
    return against.compare(against.described(one, "A"), against.described(other, "B"))


def axes_of(difference):
    return comparing.SOLVED_AXES.get(difference.name, (difference.name,))


LIKE = {  # axes that ``diff`` tells a value by: no call that it makes tells them apart
    ("pairs", "swapped"): {"mask"}, ("pairs", "causal"): {"always"}, ("given_scale", "divides"): {"scale given"},
    ("fill", "0"): {"masking"}, ("weights", "masked after"): {"masking"},
    **{("fill", x): {"empty", "empty_lse"} for x in ("-100", "-10000", "-1000000000", "less 100")},
}  # fmt: skip


OF_ONE_AXIS = [
    ("segments", "swapped"), ("joins", "causal or segments"), ("mask", "tiles of 64 by 64"), ("mask", "first batch"),
    ("heads", "first"), ("pairs", "one whole block of 64"), ("causal", "by the group"),
]  # fmt: skip
OF_TWO = [
    {"mask": "tiles of 32 by 16", "joins": "causal or key_lengths"},  # each shows in calls that it has to itself
    {"pairs": "whole blocks of 128", "scale": "1/D"},  # a plain call gives zeros
    {"causal": "without the block of 256", "heads": "n // G"}, {"pairs": "causal", "heads": "first"},
]  # fmt: skip


@pytest.mark.parametrize("values", [*({axis: value} for axis, value in OF_ONE_AXIS), *OF_TWO], ids=str)
@pytest.mark.sample(3)
def test_diff_names_values_of_any_axis(values):
    diff_names(values)


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "value"), SINGLE, ids=str)
def test_diff_names_every_value(axis, value):
    diff_names({axis: value})


def diff_names(values):
    found = compared(LAW.but(**values))
    assert found.explained, found.text()
    told = [set(axes_of(difference)) for difference in found.differences]
    own = [{axis} | LIKE.get((axis, value), set()) for axis, value in values.items()]
    assert all(any(axes & some for axes in told) for some in own), found.text()
    assert all(axes & set().union(*own) for axes in told), found.text()


@pytest.mark.parametrize(
    "values", [{"pairs": "one whole block of 8", "scale": "1/√S"}, {"pairs": "causal", "heads": "first"}], ids=str
)
@pytest.mark.sample(1)
def test_check_names_two_values_that_a_plain_call_shows_together(values):
    said, _ = named(LAW.but(**values))
    assert said == words(LAW.but(**values))


def test_values_that_nothing_tells_apart_are_both_said():
    """Without an lse, scores of -10000 where masked are the mean of the values for a query without any key."""

    def attend(query, key, value, *, mask=None, is_causal=False):
        form = LAW.but(pairs="whole blocks of 64", fill="-10000")
        return formula.forward(_inputs(locals(), query), form)["out"].astype(query.dtype)

    found = diff(of_form(LAW), attend)
    assert not found.explained
    assert "a query without any key gets the mean of the values" in found.why
    assert "masked scores are a finite number" in found.why
    assert "nothing that was asked tells these apart" in found.why


def test_a_function_of_zeros_is_asked_in_its_layout():
    """Its plain call gives zeros, which fit any formula, in arrays (B, T, N, D) and with keywords of its own."""
    form = LAW.but(pairs="whole blocks of 128", scale="1/D")

    def attend(query, key, value, bias=None, causal=False):
        turned = (x.swapaxes(1, 2) for x in (query, key, value))
        return of_form(form)(*turned, bias=bias, is_causal=causal).swapaxes(1, 2)

    found = diff(of_form(LAW), attend)
    assert found.explained, found.text()
    assert [x.name for x in found.differences] == ["scale", "pairs", "layout", "names"]
    assert not any("apart" in note for note in found.notes)  # blocks of 128, and of no other size


def test_what_a_mask_does_is_not_explained_by_other_heads():
    def attend(query, key, value, *, mask=None, is_causal=False):
        out = of_form(LAW.but(heads="first"))(query, key, value, mask=mask, is_causal=is_causal)
        return out if mask is None else np.float32(1.01) * out

    found = diff(of_form(LAW), attend)
    assert [x.name for x in found.differences] == ["heads"]
    assert not found.explained, found.text()


def test_two_sizes_of_blocks_are_told():
    one, other = (of_form(LAW.but(pairs=f"one whole block of {b}")) for b in (64, 128))
    (found,) = diff(one, other).differences
    assert (found.a.endswith("(one whole block of 64)"), found.b.endswith("(one whole block of 128)")) == (True, True)


def test_a_reason_that_a_long_text_refutes_is_none():
    """It sees all keys in short texts, and what is in no table in long ones."""

    def attend(query, key, value, *, mask=None):
        long = key.shape[-2] > 64
        inputs = _inputs({"query": query, "key": key, "value": value, "mask": mask if long else None}, query)
        return ((1.01 if long else 1) * formula.forward(inputs)["out"]).astype(query.dtype)

    found = diff(of_form(LAW), attend)
    assert not found.differences
    assert "mask, as it is read is excluded: B ignores it, but not for" in found.why


APART = [(a, b) for a, b in itertools.combinations(SINGLE, 2) if a[0] != b[0] and IGNORED not in (a[1], b[1])]


def is_so(form, words, report):
    """Whether a value that is said might as well be the form's, alone or beside its own, in the cases that say it."""
    others = [{axis: value} for axis, values in TABLE.items() for value, line in values.items() if line.words == words]
    names = {name for cause in report.causes if cause.name == words for name in cause.cases}
    cases = [case for case in SMALL if case.name in names and case.direction == "forward"]

    def alike(other):
        with np.errstate(all="ignore"):
            found = [[formula.forward(case.inputs(0, "float64"), x) for x in (form, other)] for case in cases]
        return all(np.allclose(x["out"], y["out"], equal_nan=True) for x, y in found)

    return bool(cases) and any(alike(x.but(**value)) for value in others for x in (form, LAW))


@pytest.mark.parametrize(
    ("axis", "value"),
    [("norm", x) for x in ("unit", "root mean square", "unit, eps", "root mean square, eps")]
    + [("rotary", x) for x in list(TABLE["rotary"])[1:]],
)
def test_gradients_through_a_norm_or_a_rotation(axis, value):
    """By the difference of two results along random tangents."""
    rng, conventions = np.random.default_rng(0), LAW.but(**{axis: value})
    arrays = {x: rng.normal(size=(2, n, t, 6)) for x, n, t in (("query", 4, 5), ("key", 2, 7), ("value", 2, 7))}
    cotangent = rng.normal(size=(2, 4, 5, 6))
    tangents = {name: rng.normal(size=x.shape) for name, x in arrays.items()}

    def loss(step):
        moved = {name: x + step * tangents[name] for name, x in arrays.items()}
        return np.vdot(cotangent, formula.forward(Inputs(moved, {}, {}), conventions)["out"])

    found = formula.gradient(Inputs(arrays, {}, {"cotangent": cotangent}), conventions)
    along = sum(np.vdot(found[f"grad {name}"], x) for name, x in tangents.items())
    np.testing.assert_allclose(along, (loss(1e-6) - loss(-1e-6)) / 2e-6, rtol=1e-6)
