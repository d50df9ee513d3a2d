"""Cases at sizes as people run them: what a run draws, and what is right there."""

import functools
import itertools
import tracemalloc

import jax
import numpy as np
import pytest

import mistakes_in_sizes
import right_attention
from attendax import spec
from attendax.conformance import CASES, Implementation, Verdict
from attendax.conformance.cases import LEVELS, ladder, named, pool
from attendax.conformance.cases.how import How
from attendax.conformance.cases.ladder import CASE_SECONDS, MOST_PAIRS
from attendax.conformance.cases.pool import AND, AXES, USES
from attendax.conformance.cases.square import Restrictions
from attendax.conformance.checking import judge
from attendax.conformance.conventions import parts, right
from attendax.conformance.frameworks import in_numpy
from attendax.conformance.judge import asking, judging
from attendax.conformance.judge.judges import compared
from attendax.conformance.judge.tolerances import dense_errors
from attendax.conformance.judge.trial import Trial
from libraries import implementation
from planted import SOURCE, Mistake, planted
from stated import check

WHOLE = 50  # draws


@functools.cache
def drawn(seed, budget=60.0):
    return ladder.ladder(How(seed=seed, budget=budget, thorough=True))


KERNEL = ("", "is_causal=True", "key_lengths=key_lengths")  # the calls that ``mistakes_in_sizes.kernel`` takes


@functools.cache
def drawn_for_a_kernel(seed):
    return ladder.ladder(
        How(seed=seed, thorough=True), offers=lambda case: case.call in KERNEL and case.judge == "value"
    )


def rows(cases):
    """What of each axis a case has, read from its text alone."""
    for case in cases:
        size = case.sizes
        gradient, asked, numbers, layout, *_ = pool.NAME.fullmatch(case.name).groups()
        given, S = size["S"] if size["S"] in pool.SHORT else None, size["S"]
        options = pool.asked_of(asked).options
        multiple = S + {63: 1, 1: -1}.get(S % 64, 0)
        yield {
            "direction": "gradient" if gradient else "forward",
            "dtype": case.dtype,
            "asked": asked,
            "options": options,
            "option": options[0] if len(options) == 1 else None,
            "numbers": numbers,
            "layout": layout or "in order",
            "shape": "of a model" if is_of_a_model(size, options) else None,
            "B": size["B"],
            "N": size["N"],
            "groups": size["N"] // size["G"],
            "queries": "T = S" if size["T"] == size["S"] else of_queries(size["T"]),
            "keys": given or next(k for k, (_, most) in pool.LENGTHS.items() if multiple <= most),
            "edge": None if given else {0: 0, 1: 1, 63: -1}.get(S % 64, "odd"),
            "D": size["D"],
            "V": size["V"],
        }


def of_queries(number):
    if number in pool.FEW:
        return number
    least, _ = pool.QUERIES[pool.MANY]
    return "T != S" if number < least - 1 else pool.MANY


def is_of_a_model(size, options):
    """Four heads of width 32, and more than 64 queries and keys; a cache is for few queries."""
    queries = 65 if "cache" in options else size["T"]
    return size["N"] > 3 and min(size["D"], size["V"]) > 31 and min(queries, size["S"]) > 64


def options_of(case):
    return pool.asked_of(pool.NAME.fullmatch(case.name)[2]).options


AXES_OF_SIZES = {axis: tuple(x for x in values if x != "D") for axis, values in AXES.items() if axis != "keys"}


def possible(a, x, b, y):
    """Whether some row has both values."""
    row = {axis: values[0] for axis, values in AXES.items()} | {a: x, b: y}
    free = [axis for axis in ("direction", "N", "groups", "queries", "numbers") if axis not in (a, b)]
    tries = itertools.product(*(AXES[axis] for axis in free))
    return any(pool.can_be(row | dict(zip(free, values, strict=True))) for values in tries)


COMBINATIONS = (
    "softcap and scale below 0 and sinks",
    "causal and softcap and scale",
    "causal and segments and sinks",
    "causal and window and mask cut from a longer one",
    "key lengths and mask (B, 1, T, S) and bias (T, S) and lse",
    "window to the left and cache and bias cut from a longer one",
)


class TestDraw:
    @pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, WHOLE))])
    def test_each_value_of_each_axis_is_in_every_run_forward_and_gradient(self, seed):
        found = drawn(seed)
        assert found.left_out == ()
        seen = list(rows(found.cases))
        for way in AXES["direction"]:
            mine = [row for row in seen if row["direction"] == way]
            for axis, values in AXES_OF_SIZES.items():
                values = [x for x in values if not pool.cannot({"direction": way, axis: x})]
                shown = {x for row in mine for x in (row[axis].split(AND) if axis == "asked" else [row[axis]])}
                assert set(values) - shown <= ({way} ^ set(AXES["direction"])), (way, axis)
            assert {row["keys"] for row in mine} == set(AXES["keys"])
            for use in (use for use in USES if not pool.cannot({"direction": way} | use)):
                rest = {axis: x for axis, x in use.items() if axis not in ("option", "asked", "together")}
                having = [row for row in mine if rest.items() <= row.items()]
                having = [row for row in having if "asked" not in use or use["asked"] in row["asked"].split(AND)]
                having = [row for row in having if {*use.get("together", ())} <= {*row["options"]}]
                assert any(use.get("option", row["options"][0]) in row["options"] for row in having), use
            for pair in pool.TOGETHER:
                having = [row for row in mine if {*pair} <= {*row["options"]} and row["numbers"] == "normal"]
                assert any(row["dtype"] is None and row["shape"] == "of a model" for row in having), pair
            assert {row["option"] for row in mine} >= set(pool.OPTIONS)  # each alone, too
            assert len({row["D"] for row in mine} - set(pool.WIDTHS)) > 1
            assert all(len({row[axis] for row in mine} - set(AXES[axis])) > 1 for axis in "BN")

    @pytest.mark.parametrize(
        ("arrays", "runs", "in_one", "in_all"),
        [
            ("numpy", 4, 0.7, 0.97),
            pytest.param("torch", 3, 0.65, 0.93, marks=pytest.mark.slow),
            pytest.param("jax", 5, 0.38, 0.75, marks=pytest.mark.slow),  # each size is compiled
        ],
    )
    def test_nearly_every_pair_of_values_comes_up_within_a_few_runs(self, arrays, runs, in_one, in_all):
        axes = dict(AXES_OF_SIZES)
        if arrays == "jax":
            axes |= {"asked": [x for x in AXES["asked"] if x not in ladder.NOT_IN_JAX], "layout": ["in order"]}
        pairs = {
            (a, x, b, y)
            for a, b in itertools.combinations(axes, 2)
            for x, y in itertools.product(axes[a], axes[b])
            if possible(a, x, b, y)
        }
        seen, shares = set(), []
        for seed in range(runs):
            found = drawn(seed) if arrays == "numpy" else ladder.ladder(How(seed=seed), arrays=arrays)
            for row in rows(found.cases):
                for asked in row["asked"].split(AND):
                    shown = row | {"asked": asked}
                    seen |= {(a, shown[a], b, shown[b]) for a, b in itertools.combinations(axes, 2)}
            shares.append(len(pairs & seen) / len(pairs))
        assert shares[0] > in_one
        assert shares[-1] > in_all

    def test_a_seed_repeats_a_draw_and_another_makes_another(self):
        assert drawn(1) == ladder.ladder(How(seed=1, thorough=True))
        assert not {case.name for case in drawn(1).cases} & {case.name for case in drawn(2).cases}

    @pytest.mark.parametrize("budget", [2, 10, 60])
    def test_a_budget_is_kept_and_what_has_no_room_is_told(self, budget):
        found = drawn(0, budget=budget)
        assert CASE_SECONDS["numpy"] * len(found.cases) <= budget
        assert bool(found.left_out) == (budget < 60)
        assert drawn(0, budget=0).cases == ()

    def test_combinations_and_single_values_come_first(self):
        for seed in range(3):
            assert not [x for x in drawn(seed, budget=15).left_out if "together" in x or x.count(",") == 1]

    def test_a_name_is_a_case_and_a_case_is_small(self):
        for case in drawn(1).cases:
            assert named(case.name) == case
            size = case.sizes
            assert size["B"] * size["N"] * size["T"] * size["S"] <= MOST_PAIRS
        assert named("ladder: of snakes") is None
        assert all(named(case.name) is case for case in CASES)

    def test_sizes_that_are_given_are_those_of_every_case(self):
        found = ladder.ladder(How(sizes=dict(D=40, T=300, N=6, G=2), budget=20.0, thorough=True)).cases
        assert len(found) > 5
        assert {tuple(case.sizes[axis] for axis in "DVTSNG") for case in found} == {(40, 40, 300, 300, 6, 2)}
        assert {x for row in rows(found) for x in row["options"]} == set(pool.OPTIONS) - {"cache"}
        too_large = ladder.ladder(How(sizes=dict(N=64, T=4096)))
        assert too_large == ((), ("every case: B * N * T * S is more than 17,000,000",))
        assert ladder.ladder(How(sizes=dict(T=0))) == ((), ())

    def test_what_is_refused_at_a_small_size_is_asked_once(self):
        def offers(case):
            size = case.sizes
            return size["D"] in (64, 128) and size["V"] == size["D"] and case.call == "is_causal=True"

        found = ladder.ladder(How(seed=0, thorough=True), offers=offers)
        taken = [case for case in found.cases if offers(case)]
        assert len(taken) > 100
        widths, others = len(pool.WIDTHS) - 2, len(pool.ASKED) - 1  # no own ones: widths are refused
        assert len(found.cases) - len(taken) == widths + len(pool.WIDTHS) + others
        assert max(case.sizes["S"] for case in found.cases if not offers(case)) < 257

    @pytest.mark.parametrize("level", [*LEVELS, "backward"])
    def test_a_level_has_its_directions(self, level):
        found = {row["direction"] for row in rows(ladder.ladder(How(seed=0, budget=10, thorough=True), level).cases)}
        assert found == {"forward": {"forward"}, "backward": {"gradient"}}.get(level, {"forward", "gradient"})


class TestRight:
    @pytest.mark.smoke(2)
    @pytest.mark.parametrize("options", [*pool.ASKED, *COMBINATIONS])
    @pytest.mark.parametrize("direction", ["forward", "gradient"])
    def test_in_tiny_blocks_it_is_the_definition(self, direction, options):
        sizes = dict(B=2, N=6, G=3, T=4 if "cache" in options else 11, S=13, D=3, V=5)
        if {"segments", "causal"} <= {*options.split(AND)}:
            sizes |= dict(T=13)
        case = pool.case_of(direction, options, "heavy tails", sizes, None)
        inputs = case.inputs(5, "float64")
        whole = getattr(right, direction).__wrapped__
        found = parts.in_parts(whole, 3 * 13)(inputs)
        assert found.keys() == whole(inputs).keys()
        assert not right.empty_rows(inputs).any()
        for leaf, x in whole(inputs).items():
            np.testing.assert_allclose(found[leaf], x, rtol=0, atol=1e-12 * abs(x).max())

    @pytest.mark.parametrize("direction", ["forward", "gradient"])
    def test_at_a_middle_size_it_is_the_definition_in_little_memory(self, direction):
        sizes = dict(B=1, N=2, G=1, T=1023, S=1025, D=64, V=96)
        inputs = pool.case_of(direction, "causal", "normal", sizes, None).inputs(0, "float32")
        tracemalloc.start()
        found = getattr(right, direction)(inputs)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak - sum(x.nbytes for x in found.values()) < 64 * 2**20
        arrays = {name: x.astype(np.float64) for name, x in inputs.arrays.items()}
        mask = np.tri(1023, 1025, dtype=bool)
        if direction == "forward":
            wanted = {"out": spec.attention(**arrays, mask=mask)}
        else:
            backward = spec.attention_backward(inputs.extra["cotangent"].astype(float), **arrays, mask=mask)
            wanted = {f"grad {name}": x for name, x in zip(arrays, backward, strict=False)}
        for leaf, x in wanted.items():
            np.testing.assert_allclose(found[leaf], x, rtol=0, atol=1e-12 * abs(x).max())

    @pytest.mark.parametrize("direction", ["forward", "gradient"])
    def test_the_error_of_the_formula_is_that_of_a_sample_of_heads(self, direction):
        sizes = dict(B=3, N=4, G=2, T=300, S=301, D=64, V=64)
        case = pool.case_of(direction, "causal", "logits to 60", sizes, None)
        one, all_heads = (dense_errors(case, 0, "float32", draws=draws) for draws in (1, 64))
        for leaf, x in all_heads.items():
            assert x / 4 < one[leaf] <= x  # where that is not enough, all heads are asked

    @pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 12))])
    def test_drawn_options_leave_each_query_a_key(self, seed):
        """Of options that hide keys: together they might hide all."""
        for case in drawn(seed).cases:
            if pool.asked_of(pool.NAME.fullmatch(case.name)[2]).hides and case.pairs < 2**18:
                assert not right.empty_rows(case.inputs(seed, "float32")).any(), case.name


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]
AS_ASKED = How(profile="numbers")


def cheapest_first(cases):
    return sorted(cases, key=lambda case: np.prod([case.sizes[axis] for axis in "BNTS"]))


def shows(fault, case):
    size = case.sizes
    known = size | {"R": size["N"] // size["G"], "causal": "is_causal" in case.call, "dtype": case.dtype or "float32"}
    return eval(fault.shows, known)


QUICK = ("zeros for D >= 128", "zeros at D = 100", "zeros for B >= 4", "T is no multiple of 64")
RUNS_OF_FAULTS = [
    pytest.param(
        seed,
        fault,
        direction,
        id=f"{fault.name}, {direction}, {seed}",
        marks=[] if seed == 0 and fault.name in QUICK and direction == "forward" else pytest.mark.slow,
    )
    for seed in range(10)
    for fault in mistakes_in_sizes.TABLE
    for direction in AXES["direction"]
]


class TestFaults:
    @pytest.mark.parametrize(("seed", "fault", "direction"), RUNS_OF_FAULTS)
    def test_what_is_wrong_at_some_sizes_is_red_in_every_run(self, seed, fault, direction):
        attend, backward = mistakes_in_sizes.with_fault(fault)
        attend.backward = backward
        mistaken = Implementation(attend, fault.name, arrays="numpy", backward=backward)
        shown = [c for c in drawn_for_a_kernel(seed).cases if c.direction == direction and shows(fault, c)]
        how = AS_ASKED._replace(seed=seed)
        assert any(judge(mistaken, case, how).verdict.fails for case in cheapest_first(shown)[:4])

    @pytest.mark.parametrize(
        ("given", "dtype"),
        [
            pytest.param({"bits": 10}, None, id="tf32"),
            pytest.param({"bits": 7}, None, id="bf16"),
            pytest.param({"sums": "bfloat16"}, None, id="sums in bf16"),
            pytest.param({"sums": "bfloat16"}, "bfloat16", id="sums in bf16, of bf16", marks=pytest.mark.slow),
        ],
    )
    @pytest.mark.parametrize("seed", SEEDS)
    def test_coarse_products_and_sums_are_red(self, seed, given, dtype):
        coarse = Implementation(functools.partial(mistakes_in_sizes.kernel, **given), "coarse", arrays="numpy")
        fine = Implementation(mistakes_in_sizes.kernel, "fine", arrays="numpy")
        drawn_cases = drawn_for_a_kernel(seed).cases
        long = [
            case for case in drawn_cases if case.sizes["S"] > 1000 and case.dtype == dtype and case.call in KERNEL[:2]
        ]
        long = [case for case in long if case.direction == "forward" and case.judge == "value"]
        long = [case for case in long if dtype is None or "values about 1" in case.name]  # where sums are long
        how = AS_ASKED._replace(seed=seed)
        found = [
            (judge(coarse, case, how).verdict, judge(fine, case, how).verdict) for case in cheapest_first(long)[:3]
        ]
        assert {of_fine for _, of_fine in found} == {Verdict.OK}
        assert Verdict.WRONG in {of_coarse for of_coarse, _ in found}


MET = {  # where two options meet, the keyword that is left out
    ("softcap", "window"): "softcap",
    ("causal", "scale"): "scale",
    ("bias", "key lengths"): "bias",
    ("causal", "mask"): "is_causal",
    ("softcap", "lse"): "softcap",
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("pair", MET, ids=AND.join)
def test_what_is_wrong_where_two_options_meet_is_red(pair):
    def attend(*arrays, **given):
        return right_attention.attend(*arrays, **{name: x for name, x in given.items() if name != MET[pair]})

    mistaken, right_one = (Implementation(fn, "it", arrays="numpy") for fn in (attend, right_attention.attend))
    for seed in range(3):
        cases = [c for c in drawn(seed).cases if {*pair} <= {*options_of(c)} and c.direction == "forward"]
        how = AS_ASKED._replace(seed=seed)
        found = [(judge(mistaken, case, how).verdict, judge(right_one, case, how).verdict) for case in cases]
        assert {of_right for _, of_right in found} == {Verdict.OK}
        assert any(of_mistaken.fails for of_mistaken, _ in found)


def test_a_result_of_zeros_is_reported_as_zeros():
    def attend(query, key, value, *, is_causal=False, scale=None, softcap=None):
        found = right_attention.attend(query, key, value, is_causal=is_causal, scale=scale, softcap=softcap)
        return found * (query.shape[-1] < 128)

    report = check(
        attend, arrays="numpy", only=["ladder"], level="forward", seed=0, budget=4, thorough=True, in_process=True
    )
    assert [cause.name for cause in report.causes] == ["the result is all zeros where D > 127"]


class TestHonest:
    @pytest.mark.parametrize("profile", ["numbers", pytest.param("law", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_plain_numpy_is_not_accused(self, profile, seed):
        attend, backward = right_attention.attend, right_attention.backward
        given = {"arrays": "numpy", "backward": backward, "only": ["ladder"], "profile": profile}
        report = check(attend, seed=seed, budget=2 if seed == 0 else 30, thorough=True, in_process=True, **given)
        assert report.failures == ()
        assert report.counts()["ok"] > 5

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("name", ["torch-sdpa", "jax.nn", "attendax", "attendax-spec"])
    @pytest.mark.parametrize("seed", range(3))
    def test_libraries_are_not_accused(self, name, dtype, seed):
        report = check(implementation(name), only=["ladder"], seed=seed, budget=15, thorough=True, dtype=dtype)
        assert report.failures == ()
        assert report.counts()["ok"] > 10


class TestUnwritten:
    """The last rows of a kernel that never writes them hold what was in memory: an earlier result, unless it is gone.

    Which memory a kernel gets is the allocator's choice: NaN, numbers of something else, and once in a while an earlier
    result. Cases are repeated.
    """

    FORWARD, GRADIENT = named("lengths that no block divides"), named("gradient: lengths that no block divides")

    def test_numpy(self):
        def attend(query, key, value):
            out = np.empty_like(query)
            out[..., :128, :] = spec.attention(query, key, value)[..., :128, :]
            return out

        def backward(grad_output, query, key, value):
            found = [np.empty_like(x) for x in (query, key, value)]
            for x, right_one in zip(found, spec.attention_backward(grad_output, query, key, value), strict=False):
                x[..., :128, :] = right_one[..., :128, :]
            return found

        attend.backward = backward
        lazy = Implementation(attend, "lazy", arrays="numpy", backward=backward)
        right_one = Implementation(spec.attention, "right", arrays="numpy", backward=spec.attention_backward)
        for case in (self.FORWARD, self.GRADIENT):
            found = [(judge(right_one, case, AS_ASKED).verdict, judge(lazy, case, AS_ASKED).verdict) for _ in range(3)]
            assert {of_right for of_right, _ in found} == {Verdict.OK}  # and its results are left in freed memory
            assert any(of_lazy.fails for _, of_lazy in found)

    def test_torch(self):
        torch = pytest.importorskip("torch")
        right_attend = torch.nn.functional.scaled_dot_product_attention

        def attend(query, key, value):
            out = torch.empty_like(query)
            out[..., :128, :] = right_attend(query, key, value)[..., :128, :]
            return out

        lazy, right_one = (Implementation(fn, "it", arrays="torch") for fn in (attend, right_attend))
        found = [[judge(x, self.FORWARD, AS_ASKED).verdict for x in (right_one, lazy)] for _ in range(3)]
        assert {of_right for of_right, _ in found} == {Verdict.OK}
        assert any(of_lazy.fails for _, of_lazy in found)

    def test_the_memory_of_a_small_result_is_poisoned(self):
        arrays = {name: np.ones((1, 1, 3, 5), np.float32) for name in ("query", "key", "value")}
        in_numpy.poison(arrays)
        assert np.isnan(np.empty((1, 1, 3, 5), np.float32)).all()


def test_a_kernel_gets_sizes_that_it_takes():
    """Causal, T = S, multiples of 128, one width: the budget is not spent on what it refuses."""
    form = Restrictions(square=True, causal=True, block=128, widths=(128,))

    def takes(case):
        return not form.lacking(case)

    found = ladder.ladder(How(seed=3, budget=20.0, thorough=True), offers=takes, takes=takes)
    taken = [case for case in found.cases if takes(case)]
    assert len(taken) >= 10
    assert {case.direction for case in taken} == {"forward", "gradient"}
    assert all(case.sizes["N"] == 1 for case in found.cases if not takes(case))  # what is refused, once each
    assert not any("queries 1" in words or "not causal" in words for words in found.left_out)


def test_the_error_of_one_draw_is_not_the_last_word_in_a_narrow_dtype():
    """Where parts cancel, the formula is off by 0.0005 of the largest number in one draw, and by 0.02 in others."""
    name = (
        "gradient: ladder: mask (1, 1, T, S), heavy tails, widths before tokens, "
        "B=2 N=1 G=1 T=1 S=20591 D=16 V=16, float16"
    )
    trial = Trial(Implementation(right_attention.attend, "right", arrays="numpy"), named(name), How(seed=1))
    wanted = trial.expected()
    off = {leaf: x + 0.0178 * np.abs(x).max() * (leaf == "grad query") for leaf, x in wanted.items()}
    assert compared(trial, off, wanted).verdict is Verdict.OK
    off |= {"grad query": wanted["grad query"] * 1.5}
    assert compared(trial, off, wanted).verdict is Verdict.WRONG


def test_gradients_may_be_sums_of_one_term_after_the_other():
    """Of 10,495 equal weights such a sum is off by more than four times what a sum of pairs is."""
    name = "gradient: ladder: scale, numbers below 0.01, B=1 N=4 G=4 T=1 S=10495 D=32 V=32"
    given = {"arrays": "numpy", "level": "backward", "only": [name], "seed": 1, "budget": 0, "in_process": True}
    for total in ("powers", "(dweights * weights)"):
        line = f"{total}.sum(axis=-1, keepdims=True)"
        for instead, ok in ((f"{total}.cumsum(axis=-1)[..., -1:]", True), (f"{line} * np.float32(0.9)", False)):
            made = planted(SOURCE, Mistake(name, line, instead))
            assert check(made["attend"], backward=made["backward"], profile="numbers", **given).ok is ok


@pytest.mark.parametrize("name", ["plain", "gradient: plain", "grouped heads"])
def test_what_a_function_of_jax_takes_is_traced_and_not_run(name):
    ran = []

    def attend(query, key, value):
        jax.debug.callback(lambda: ran.append(name))
        if query.shape[1] != key.shape[1]:
            raise ValueError("key has fewer heads than query")
        return jax.nn.softmax(query @ key.swapaxes(-1, -2)) @ value

    made = Implementation(attend, "mine", arrays="jax")
    assert judging.offers(made, named(name), How(profile="numbers")) is (name != "grouped heads")
    assert len(ran) == (name == "gradient: plain")  # the plainest call tells whether it has any gradient


@pytest.mark.slow
@pytest.mark.parametrize("arrays", ["torch", "jax"])
def test_what_is_of_the_law_alone_is_not_told_as_a_lack_of_time(arrays):
    """Gradients of long texts in half precision."""
    how = How(profile="numbers", seed=3, budget=3000.0)
    found = ladder.ladder(how, offers=None, takes=lambda case: not asking._rounds_each_sum(case, arrays), arrays=arrays)
    assert found.cases
    assert found.left_out == ()
