"""Every case of the kit has a planted mistake that it catches, and earlier ones do not; what is right passes all."""

import pytest

import mistakes_in_biases
import mistakes_in_blocks
import mistakes_in_caches
import mistakes_in_contexts
import mistakes_in_determinism
import mistakes_in_directions
import mistakes_in_dropout
import mistakes_in_gradients
import mistakes_in_leaks
import mistakes_in_masks
import mistakes_in_sinks
import mistakes_in_values
import right_attention
from attendax.conformance import CASES, Implementation, Verdict, checking
from laws import LAWS, WITHOUT
from planted import KERNEL, SOURCE, Mistake, by_law, first_of, first_to_catch, implementation

NAMED = {case.name: case for case in CASES}
IN_JAX = [c for c in CASES if c.level == "everything" or c.direction == "eager"]
MODULES = (mistakes_in_values, mistakes_in_masks, mistakes_in_biases, mistakes_in_gradients, mistakes_in_leaks,
           mistakes_in_determinism, mistakes_in_dropout, mistakes_in_blocks, mistakes_in_contexts,
           mistakes_in_caches, mistakes_in_sinks)  # fmt: skip
MISTAKES = [mistake for module in MODULES for mistake in module.MISTAKES]
SMALL_PAIRS = 200_000  # pairs of queries and keys, of a call that takes less than a second
MISSED = (  # cases for faults that the profile "numbers" once missed
    *(f"in blocks: {option}, 300" for option in mistakes_in_blocks.LOW_AND),
    "causal, after fewer keys", "causal, few queries of many keys", "causal, from 2,048 on", "window, one query",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("as_users_have_it")


@pytest.mark.slow
def test_what_is_right_passes_every_case():
    report = by_law(right_attention.attend, arrays="numpy", backward=right_attention.backward)
    assert [outcome.case.name for outcome in report.failures] == []
    assert report.counts()["ok"] == sum("numpy" in case.frameworks for case in CASES) - len(
        [case for case in IN_JAX if "numpy" in case.frameworks]
    )


@pytest.mark.slow
def test_what_is_right_in_jax_passes_every_direction():
    report = by_law(mistakes_in_directions.right, arrays="jax", only=[case.name for case in IN_JAX])
    assert [(outcome.case.name, outcome.told()) for outcome in report.failures] == []
    assert report.counts() == {Verdict.OK: len(IN_JAX)}


def test_a_softmax_whose_shift_no_derivative_sees_is_right():
    """As that of ``jax.nn``: of some inputs its second derivatives are ten times as far off as those of another."""
    only = ["second order: lse"]
    assert by_law(mistakes_in_directions.right, arrays="jax", only=only, seed=1578, in_process=True).ok


@pytest.mark.smoke
@pytest.mark.law("all", "kit")
@pytest.mark.parametrize("law", [law for law in LAWS if (law, "kit") not in WITHOUT])
def test_each_mistake_is_caught_by_its_case(law):
    """By that alone, if it is small or was missed; in JAX a fourth of them. The slow tests ask earlier cases, too."""
    cases = [case for case in CASES if case.law == law and (case.pairs <= SMALL_PAIRS or case.name in MISSED)]
    cases = {case.name: case for case in cases}
    mistaken = [(implementation(mistake), mistake.case) for mistake in MISTAKES if mistake.case in cases]
    in_jax = mistakes_in_directions.MISTAKES
    mistaken += [(Implementation(in_jax[name], name), name) for name in list(in_jax)[::4] if name in cases]
    assert mistaken
    assert [name for each, name in mistaken if first_of(each, [cases[name]]) is None] == []


@pytest.mark.smoke
def test_a_fault_that_was_missed_is_found_by_the_default_profile():
    assert {name: NAMED[name].profile for name in MISSED} == dict.fromkeys(MISSED, "numbers")


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.case)
def test_a_mistake_is_caught_and_first_by_its_case(mistake):
    caught = first_to_catch(mistake)
    assert caught is not None
    assert caught.case.name == mistake.case
    assert caught.finding.message
    compile(caught.reproduction, mistake.case, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("mistake", mistakes_in_blocks.SMALLER, ids=lambda mistake: mistake.case)
def test_a_mistake_in_blocks_of_128_is_caught(mistake):
    assert first_to_catch(mistake) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", mistakes_in_directions.MISTAKES)
def test_a_mistake_in_a_direction_is_caught_there_first(name):
    """Forward and gradient of these are right by construction, the plain ones are looked at again."""
    mistaken = Implementation(mistakes_in_directions.MISTAKES[name], name)
    plain = [case for case in CASES if case.name in ("plain", "gradient: plain")]
    order = [case for case in CASES if case in (*plain, *IN_JAX)]
    if name.startswith("jvp"):  # by linear_call, which JAX does not differentiate twice
        order = [case for case in order if not case.direction.startswith("second")]
    outcomes = (checking.judge(mistaken, case) for case in order)
    caught = next((outcome for outcome in outcomes if outcome.verdict.fails), None)
    assert caught is not None
    assert caught.case.name == name


@pytest.mark.smoke
def test_every_text_to_replace_is_in_the_source_once():
    mistakes = [(m, SOURCE if isinstance(m, Mistake) else KERNEL) for m in (*MISTAKES, *mistakes_in_blocks.SMALLER)]
    assert [m.case for m, source in mistakes if source.count(m.old) != 1] == []


@pytest.mark.smoke
def test_every_case_has_its_mistake():
    assert set(mistakes_in_directions.MISTAKES) == {case.name for case in IN_JAX}
    assert {mistake.case for mistake in MISTAKES} == {case.name for case in CASES} - {case.name for case in IN_JAX}
