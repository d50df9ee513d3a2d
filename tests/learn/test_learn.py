"""``attendax learn`` and ``attendax grade``: right functions are right, and a wrong one is told its own mistake."""

import ast
import contextlib
import functools
import inspect
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path

import jax
import learner
import numpy as np
import pytest
from mistakes_in_learning import BACK, BLOCK, HEADS_BACK, PLANTED, TWO

from attendax import learn, spec
from attendax.cli import main
from attendax.learn import arrays, folders, reasons
from attendax.learn.arrays import Arrays
from attendax.learn.exercises import INITIAL, MODULES, path, texts
from attendax.learn.grading import Grade, grade, grade_exercise
from attendax.learn.reasons import (
    ErrorMessage,
    Submission,
    answer_with,
    cause_and_remedy,
    close,
    formulas_with,
    mistakes,
    right,
)
from places import ROOT, SOURCE

PATH = {exercise.name: exercise for exercise in path()}
RIGHT = learner.names()


def two_of(name):
    """All pairs of mistakes of an exercise, each in each of its ways, in an order that mixes them."""
    ways = [(each, way) for each, row in mistakes(PATH[name]).items() for way in range(len(row.get("wrong", ())))]
    pairs = [pair for pair in itertools.combinations(ways, 2) if pair[0][0] != pair[1][0]]
    return random.Random(name).sample(pairs, len(pairs))


SAID = {  # of functions that are wrong by no mistake of the table: the exercise, the function, and the reason
    "nothing": ("softmax", lambda x, axis=-1: None, "^It returns None: is a `return` missing"),
    "a word": ("softmax", lambda x, axis=-1: "a", "one str; expected an array"),
    "a list": ("compute_attention_scores", lambda Q, K, scale=True: [[float(q @ k) for k in K] for q in Q],
               "^It returns a list of 1; expected one array with 1 query, 2 keys"),
    "one result of two": ("additive_attention", lambda *arrays: RIGHT["additive_attention"](*arrays)[0],
                          "It returns one array; expected output, weights."),
    "an error": ("softmax", lambda x, axis=-1: x @ x.T @ x, "raises ValueError"),
    "other numbers": ("softmax", lambda x, axis=-1: np.asarray(x, "f4") - x.max(), "^The numbers differ.$"),
    "narrow numbers": ("merge_heads", lambda x: RIGHT["merge_heads"](x).astype(np.float16),
                       "merged is float16, and the inputs are float64"),
    "its input": ("softmax", lambda x, axis=-1: np.exp(np.subtract(x, x.max(axis=axis, keepdims=True), out=x)),
                  "writes into its input x"),
    "0 for large entries": ("softmax", lambda x, axis=-1: np.nan_to_num(np.exp(x) / np.exp(x).sum(axis, keepdims=True)),
                            "weights is 0 everywhere with entries of 1,000."),
    "a factor for each question": ("softmax", lambda x, axis=-1: RIGHT["softmax"](x, axis) * (1 + x.ndim),
                                   "^The numbers differ.$"),
    "a factor near 1": ("merge_heads", lambda x: RIGHT["merge_heads"](x) * (1 + 1e-5), "^The numbers differ.$"),
    "relu has no upper bound": ("feed_forward", lambda x, W1, b1, W2, b2: np.clip(x @ W1 + b1, 0, 6) @ W2 + b2,
                                 "^It is right with one token; M = F = 3; wrong with 2 texts.$"),
    "a small deviation": ("learned_positional_encoding", lambda *shape: np.random.default_rng().normal(0, 0.01, shape),
                          "deviation, about: 0.01, expected 0.02"),
    "an empty text": ("create_padding_mask", lambda lengths, S: np.arange(S) < np.maximum(lengths[:, None], 1),
                      "^It is right with 2 texts; wrong with a text of no token.$"),
}  # fmt: skip
MULTI, GET = "MultiHeadAttention", '{name: getattr(self, name) for name in ("W_Q", "W_K", "W_V", "W_O")}'
FOUR = "self.W_Q, self.W_K, self.W_V, self.W_O = ("
OTHER_WEIGHTS = ("zeros((d_model, d_model))", "ones((d_model, d_model))", "normal(d_model, d_model)", "self.one")
EDITED = {  # the same of a text of ``learner.py`` replaced: a mistake that makes all calls fail was named for some
    "an argument is missing": (HEADS_BACK, 'c["V"], c["W_V"])', 'c["V"])', "^It raises "),
    "the cache is empty": (HEADS_BACK, "    c = cache\n    dC", "    c = {}\n    dC", "^It raises "),
    "an index": (HEADS_BACK, "return dy @ W.T, dW", "return (dy @ W.T)[99], dW", "^It raises "),
    "a factor": (BACK, "return dQ, dK, dV\n\ndef additive", "return dQ, dK, dV * 3\n\ndef additive",
                 "Right: grad_Q, grad_K. Wrong: grad_V.\n.*grad_V is 3 times the right result everywhere."),
    "two outputs": (MULTI, "return output\n\n    def backward", "return output, 1\n\n    def backward",
                    "It returns a tuple of 2 as output; exp"),
    "no dict": (MULTI, GET, "[self.W_Q]", r"It returns a list of 1 as get_params\(\); expected a dict by name."),
    "another weight": (MULTI, GET, GET.replace("getattr(self, name)", 'getattr(self, name.replace("_O", "_V"))'),
                       r"^get_params\(\)\['W_O'\]: the numbers differ.$"),
    "weights are not set": (MULTI, "            setattr(self, name, value)", "            pass",
                            "A second call with the same input differs"),
    **{f"weights from {new}": (
        MULTI, f"{FOUR}normal(d_model, d_model) * 0.1 for",
        f"self.one = 0.1 * normal(d_model, d_model); {FOUR}{new} for", f"Not so: {INITIAL}.") for new in OTHER_WEIGHTS},
    "W1 is 0": (BLOCK, "0.1 * normal(d_model, d_ff), ", "zeros((d_model, d_ff)), ", f"Not so: {INITIAL}"),
    "the default d_ff": (BLOCK, "d_ff = d_ff or 4 * d_model", "d_ff = d_ff or 2 * d_model",
                         "shape of W1 for M = 64 and the default d_ff: "),
    "another axis": ("softmax", "def softmax(x, axis=-1)", "def softmax(x, axis=0)", "wrong with no axis given.$"),
    "no axis": ("softmax", "def softmax(x, axis=-1)", "def softmax(x, axis)", "wrong with no axis given.$"),
    "another scale": ("compute_attention_scores", "scale=True", "scale=False", "wrong with no scale given.$"),
    "another eps": ("layer_norm", "beta, eps=1e-6", "beta, eps=2e-5", "wrong with no eps given.$"),
    "another eps in the backward": ("layer_norm_backward", "gamma, eps=1e-6", "gamma, eps=2e-5",
                                    "wrong with no eps given.$"),
}  # fmt: skip


LIBRARIES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
    for name in learner.LIBRARIES
]


@pytest.fixture
def folder(tmp_path):
    """A folder with right files."""
    for name, text in learner.files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


class TestRight:
    @pytest.mark.parametrize("name", PATH)
    def test_the_specification_is(self, name):
        exercise = PATH[name]
        assert grade_exercise(exercise, getattr(spec, exercise.symbol), Arrays("numpy")).right

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        "library", [*(x for x in LIBRARIES if "jax" not in x.values), pytest.param("jax", marks=pytest.mark.slow)]
    )
    def test_a_learners_whole_path_is(self, library):
        names, kind = learner.names(library), Arrays(library)
        with jax.numpy_rank_promotion("allow"):
            grades = [grade_exercise(exercise, names[exercise.symbol], kind) for exercise in PATH.values()]
        assert [str(each) for each in grades if not each.right] == []

    @pytest.mark.parametrize("name", [name for name in PATH if "dropped" not in PATH[name].text])
    def test_a_formula_without_mistakes_is_the_specification(self, name):
        for question in PATH[name].questions:
            correct = right(PATH[name], question, {})
            formula = answer_with(PATH[name], question, {}, ())
            assert all(close(value, correct[key]) for key, value in formula.items()), question.about
            assert sum(np.size(value) for value in formula.values()) > 0


class TestWrong:
    @pytest.mark.smoke(1)
    @pytest.mark.parametrize(("name", "exercise", "old", "new"), PLANTED, ids=[f"{p[0]}: {p[1]}" for p in PLANTED])
    def test_a_planted_mistake_is_named(self, name, exercise, old, new):
        names = learner.names("numpy", old, new)
        found = grade_exercise(PATH[exercise], names[PATH[exercise].symbol], Arrays("numpy"), hint=1)
        assert (found.state, found.mistakes) == ("wrong", (name,)), str(found)
        cause, remedy = cause_and_remedy(texts("mistakes")[name]["says"])
        assert found.reason.startswith(cause.partition("{")[0].rstrip("."))
        assert remedy not in found.reason or name == reasons.ORDER or not remedy
        assert remedy in found.hint or name == reasons.ORDER
        assert "shape (" not in found.example or " has shape (" in found.reason
        assert "smallest input" in found.example

    @pytest.mark.smoke
    @pytest.mark.parametrize(("both", "exercise", "edits"), TWO, ids=[str(two[0]) for two in TWO])
    def test_two_at_once_are_both_named(self, both, exercise, edits):
        source = "".join(learner.FILES.values())
        assert all(source.count(old) == 1 for old, _ in edits)
        text = {name: text for name, text in learner.FILES.items()}
        for old, new in edits:
            text = {name: each.replace(old, new) for name, each in text.items()}
        names = learner.names(files=text)
        found = grade_exercise(PATH[exercise], names[PATH[exercise].symbol], Arrays("numpy"))
        assert sorted(found.mistakes) == sorted(both), str(found)

    def test_each_planted_mistake_is_another_one_and_none_is_missing_from_the_table(self):
        """Of the same mistake in its other exercises the answers alone are judged, below."""
        assert len({name for name, *_ in PLANTED}) == len(PLANTED) >= 188
        table = texts("mistakes")
        assert sum(len(row["on"].split()) for row in table.values()) >= 594
        for name, row in table.items():
            assert set(row["on"].split()) <= PATH.keys(), name
            assert row["says"].endswith((".", "?")), name
            assert row["seen"], name

    @pytest.mark.smoke
    @pytest.mark.parametrize("name", PATH)
    def test_no_two_mistakes_look_alike(self, name):
        """Else a reason could be false. Each way of each shows somewhere, in one of its exercises."""
        exercise = PATH[name]
        ways = [(each, way) for each, row in mistakes(exercise).items() for way in range(len(row.get("wrong", ())))]
        given = {off: [answer_of(exercise, off, each) for each in exercise.questions] for off in ways}
        cases = {off: Submission(exercise, answers) for off, answers in given.items()}
        shown = [off for off in ways if cases[off].wrong.any()]
        for one, other in itertools.permutations(shown, 2):
            if one[0] != other[0] and "dropped" not in exercise.text:
                assert not all(map(same, given[one], given[other])), (one, other)
        for mistake, row in mistakes(exercise).items():
            some = [cases[off] for off in shown if off[0] == mistake]
            assert some or "wrong" not in row, mistake
            assert any(case.wrong[:, 1:].any() for case in some) or row.get("only_fails") or not some, mistake

    @pytest.mark.parametrize("name", PATH)
    def test_each_way_of_each_mistake_is_named_first(self, name):
        """A function that is wrong so, of which the grader knows no more than what it gives."""
        exercise = PATH[name]
        for mistake, row in mistakes(exercise).items():
            for way in range(len(row.get("wrong", ()))):
                case = Submission(exercise, [answer_of(exercise, (mistake, way), each) for each in exercise.questions])
                if case.wrong.any():
                    assert next(iter(case.explained()[0]), "") == mistake, (mistake, way, case.explained()[0])

    @pytest.mark.smoke
    def test_what_changes_nothing_is_not_said(self):
        """A partner of a pair that does nothing in this exercise made the pair of it, and was named."""

        def softmax(x, axis=-1):
            e = np.exp(x - x.max())
            return e / e.sum(axis=axis, keepdims=True)

        def softmax_backward(grad_output, x, axis=-1):
            p = softmax(x, axis)
            return p * (grad_output - (grad_output * p).sum(axis=axis, keepdims=True))

        for function in (softmax, softmax_backward):
            assert sorted(grade(function).mistakes) == ["empty row is NaN", "maximum of everything"], grade(function)

    @pytest.mark.sample(27)
    @pytest.mark.parametrize(("name", "pairs"), [(n, k) for n in PATH for k in range(len(two_of(n)) // 12 + 1)])
    def test_two_mistakes_at_once_are_named_by_one_of_the_two(self, name, pairs, monkeypatch):
        """Of every pair: what is said is one of the two, and if both are said, neither explains it alone.

        Two may make a third, as -inf times 0 with -1e9 for -inf makes scores + (1 - mask) * -1e9.
        """
        monkeypatch.setattr(reasons, "answer_with", cached)
        exercise = PATH[name]
        for off in filter(can_be_made, two_of(name)[12 * pairs : 12 * pairs + 12]):
            case = Submission(exercise, [answer_of(exercise, off, each) for each in exercise.questions])
            found = set(case.explained()[0]) if case.wrong.any() else set()
            third = [(each, way) for each in found for way in range(len(texts("mistakes")[each].get("wrong", ())))]
            made = len(found) == 1 and any(case._reproduced_by(each) for each in third)
            assert made or found <= {off[0][0], off[1][0]}, (off, found)
            alone = any((case.marks((each,)) == case.wrong).all() for each in off)  # facts and sizes included
            assert len(found) < 2 or not alone, (off, found)

    @pytest.mark.smoke
    def test_square_arrays_that_hide_a_swap(self):
        def compute_attention_scores(Q, K, scale=True):
            s = np.stack([q @ k.T for q, k in zip(Q, K, strict=True)]) if Q.ndim == 3 else Q @ K.T
            return s.reshape(*Q.shape[:-2], K.shape[-2], Q.shape[-2]) / (Q.shape[-1] ** 0.5 if scale else 1)

        found = grade(compute_attention_scores)
        assert "right with T = S = 3" in found.reason
        assert "look for a swapped axis" in found.reason

    @pytest.mark.smoke
    @pytest.mark.parametrize(("exercise", "function", "words"), SAID.values(), ids=SAID)
    def test_what_no_mistake_gives_is_described(self, exercise, function, words):
        found = grade(function, name=exercise)
        assert (found.state, found.mistakes, found.hint) == ("wrong", (), "")
        assert re.search(words, found.reason), found.reason

    @pytest.mark.smoke(5)
    @pytest.mark.parametrize(("exercise", "old", "new", "words"), EDITED.values(), ids=EDITED)
    def test_what_no_mistake_gives_is_described_in_the_learners_files(self, exercise, old, new, words):
        self.test_what_no_mistake_gives_is_described(exercise, learner.names("numpy", old, new)[exercise], words)

    def test_where_it_raises_is_no_wrong_result(self):
        def scaled_dot_product_attention_backward(grad_output, Q, K, V, mask=None):
            if Q.shape[-2] != K.shape[-2]:
                raise ValueError("square")
            dQ, dK, dV = RIGHT["scaled_dot_product_attention_backward"](grad_output, Q, K, V, mask)
            return dQ, dK, np.array(dV + np.arange(dV.size).reshape(dV.shape)) if dV.shape == (3, 3, 3) else dV

        found = grade(scaled_dot_product_attention_backward)
        assert "It raises ValueError: square (test_learn.py, line" in found.reason
        assert ") with 1 query, 2 keys; T = 2, S = 3; a query" in found.reason
        assert "Right: grad_Q, grad_K. Wrong: grad_V." in found.reason
        assert "times the right" not in found.reason
        assert "swapped" not in found.reason

    def test_the_example_is_one_text_of_a_batch(self):
        def scaled_dot_product_attention_backward(grad_output, Q, K, V, mask=None):
            dQ, dK, dV = RIGHT["scaled_dot_product_attention_backward"](grad_output, Q, K, V, mask)
            return dQ, dK, dV + np.arange(len(Q))[:, None, None] if Q.shape[-1] == 5 else dV

        def alone(grad_output, Q, K, V, mask=None):
            dQ, dK, dV = RIGHT["scaled_dot_product_attention_backward"](grad_output, Q, K, V, mask)
            return dQ, dK, dV + (Q.shape[-1] == 5)

        name = "scaled_dot_product_attention_backward"
        whole, one = grade(scaled_dot_product_attention_backward).example, grade(alone, name=name).example
        arrays = [re.search(r" Q = (.*?)\n  K", each, re.DOTALL)[1] for each in (whole, one)]
        assert [np.shape(eval(array)) for array in arrays] == [(4, 2, 5), (1, 2, 5)]

    def test_of_large_arrays_the_first_entry_that_differs_is_shown(self):
        def split_heads(x, num_heads):
            heads = RIGHT["split_heads"](x, num_heads).copy()
            if num_heads == 3:
                heads[0, 1, 2, 0] = 25
            return heads

        example = grade(split_heads).example
        assert re.search(r"split at \[0, 1, 2, 0\]: expected -?\d\.\d+, got 25$", example), example

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_the_library_is_that_of_the_code(self, library):
        names = learner.names(library)
        assert {arrays.library(names[exercise.symbol]) for exercise in PATH.values()} == {library}
        assert grade(names["softmax"]).right

    def test_what_another_library_imports_is_not_the_learners(self):
        def merge_heads(x):
            return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) if x.ndim else other(x)

        other = type(learner.names)((lambda x: x).__code__, {"torch": type(np)("torch")})
        other.__module__ = "attendax.elsewhere"
        assert arrays.library(merge_heads) == "numpy"

    @pytest.mark.parametrize("library", LIBRARIES[1:])
    def test_in_another_library(self, library):
        old, new = "return p * (dp - inner)", "return p * dp"
        names = learner.names(library, old, new)
        with jax.numpy_rank_promotion("allow"):
            found = grade(names["softmax_backward"], arrays=library)
        assert found.mistakes == ("row sum forgotten",), str(found)


class TestGrade:
    def test_a_skeleton_is_not_yet(self):
        names = {"__name__": "mine", "Array": np.ndarray, "np": np}
        for module in MODULES:
            text = folders.skeleton(module)
            exec(
                re.sub(r"^from (attention_core|multi_head|positional) import .*$", "", text, flags=re.MULTILINE), names
            )
        for exercise in PATH.values():
            found = grade_exercise(exercise, names[exercise.symbol], Arrays("numpy"))
            assert (found.state, found.reason) == ("not yet", ""), exercise.name

    def test_an_unwritten_function_that_it_calls_is_named(self):
        def softmax(x, axis=-1):
            raise NotImplementedError

        def attention_weights(scores, axis=-1):
            return softmax(scores, axis)

        found = grade(attention_weights)
        assert found.state == "not yet"
        assert found.reason.startswith("It calls ")
        assert found.reason.endswith("softmax, which is not written yet.")

    def test_a_closure_may_be_unset_and_a_function_not_of_python(self):
        def softmax(x, axis=-1):
            return RIGHT["softmax"](x, axis) if x.ndim else later

        assert grade(softmax).right
        assert grade(np.exp, name="softmax").state == "wrong"
        later = None

    @pytest.mark.smoke
    def test_a_backward_needs_its_forward(self):
        def multi_head_attention_backward(grad_output, cache):
            return None

        multi_head_attention_backward.__module__ = "nowhere"
        assert "multi_head_attention_forward" in grade(multi_head_attention_backward).reason

    def test_hints_grow(self):
        names = learner.names("numpy", "return p * (dp - inner)", "return p * dp * 2")
        hints = [grade(names["softmax_backward"], hint=level).hint for level in range(4)]
        assert hints.pop(0) == ""
        assert hints[0].startswith("Hint: Raising x_j")
        assert hints[1].startswith(hints[0])
        assert "More: It is p_i" in hints[1]
        assert hints[2].startswith(hints[1])
        assert "∂pᵢ/∂xⱼ = pᵢ (δᵢⱼ - pⱼ)" in hints[2]

    @pytest.mark.smoke
    def test_a_loop_is_stopped_at_its_line(self):
        def softmax(x, axis=-1):
            while True:
                with contextlib.suppress(Exception):
                    x = x + 1

        begin = time.monotonic()
        found = grade(softmax, seconds=0.2)
        assert time.monotonic() - begin < 5
        assert "did not end within 0.2 seconds" in found.reason
        assert re.search(r"\(test_learn.py, line \d+\)", found.reason)

    @pytest.mark.smoke
    def test_it_is_known_by_its_name(self):
        assert grade(RIGHT["softmax"], name="attention_weights").right
        with pytest.raises(ValueError, match="no exercise 'sofmax'; did you mean softmax"):
            grade(lambda x: x, name="sofmax")
        with pytest.raises(ValueError, match="arrays got 'numpi'"):
            grade(RIGHT["softmax"], arrays="numpi")
        with pytest.raises(ValueError, match="hint got 4"):
            grade(RIGHT["softmax"], hint=4)

    @pytest.mark.smoke
    def test_of_a_class_the_first_part_that_is_not_right(self):
        names = learner.names("numpy", "dn1 = dq + dk + dv", "dn1 = dq")
        found = grade(names["TransformerEncoderBlock"])
        assert (found.name, found.mistakes) == ("TransformerEncoderBlock.backward", ("queries only",))
        assert grade(RIGHT["TransformerEncoderBlock"]).right

    def test_a_notebook_shows_it(self):
        found = grade(learner.names("numpy", "return p * (dp - inner)", "return p * dp")["softmax_backward"])
        shown = ElementTree.fromstring(found._repr_html_())
        text = "".join(shown.itertext())
        assert "wrong softmax_backward" in text
        assert "The gradient forgets that a row sums to 1." in text
        assert repr(found) == str(found)


class TestTexts:
    @pytest.mark.parametrize("name", PATH)
    def test_the_example_by_hand_is_right(self, name):
        exercise = PATH[name]
        text = by_hand(exercise)
        if name in ("learned_positional_encoding", "stack_encoder_blocks", "ScaledDotProductAttention"):  # in words
            return
        given = {}
        for line in re.findall(r"^ +(\w+ = .*)$", text, re.MULTILINE):
            *keys, value = line.split(" = ")
            given |= {key: eval(value, {"log": math.log}) for key in keys}
        defaults = {"mask": None, "scale": True, "axis": -1, "mask_value": -1e9}
        arrays = {key: np.array(value) for key, value in given.items() if isinstance(value, list)}
        floats = {key: array.astype(float) for key, array in arrays.items() if array.dtype == int and key != "lengths"}
        inputs, wanted = defaults | given | arrays | floats, exercise.questions[-1].inputs
        found = exercise.call(getattr(spec, exercise.symbol), {key: inputs[key] for key in wanted})
        results = [key for key in given if key in found and key not in wanted]
        assert results
        for key in results:
            np.testing.assert_allclose(found[key], given[key], atol=0.0051, err_msg=key)

    def test_every_exercise_has_its_texts(self):
        assert texts("exercises").keys() == PATH.keys()
        for name, row in texts("exercises").items():
            assert all(row[key].strip() for key in ("teaches", "hint", "more")), name
            assert len(PATH[name].derivation) > 40, name

    @pytest.mark.parametrize("library", learner.LIBRARIES)
    @pytest.mark.parametrize("module", MODULES)
    def test_a_skeleton_holds_nothing_of_the_solution(self, module, library):
        tree = ast.parse(folders.skeleton(module, library))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert functions
        for function in functions:
            *docstring, last = function.body
            assert isinstance(last, ast.Raise)
            assert all(isinstance(node, ast.Expr) for node in docstring)
        for exercise in PATH.values():
            if exercise.text["file"] == module:
                assert any(exercise.symbol == getattr(node, "name", "") for node in tree.body)

    def test_signatures_are_those_of_the_specification(self):
        names = {"Array": np.ndarray}
        exec(re.sub(r"^from .*$", "", "\n".join(map(folders.skeleton, MODULES)), flags=re.MULTILINE), names)
        for exercise in PATH.values():
            ours = list(inspect.signature(names[exercise.symbol]).parameters)
            assert ours == list(inspect.signature(getattr(spec, exercise.symbol)).parameters)[: len(ours)]


@functools.cache
def answer_of_a_learner(name, number, off):
    return answer_with(PATH[name], PATH[name].questions[number], ErrorMessage("It raises."), off)


def cached(exercise, question, answer, off):
    """The same as ``answer_with``, and quick where nothing is drawn."""
    if "dropped" in exercise.text:
        return answer_with(exercise, question, answer, off)
    number = next(k for k, each in enumerate(exercise.questions) if each is question)
    return answer_of_a_learner(exercise.name, number, off)


def can_be_made(off):
    """Two mistakes in one place cannot."""
    try:
        return bool(formulas_with(off))
    except ValueError:
        return False


def answer_of(exercise, off, question):
    """Of a learner who makes a mistake in a certain way, or several."""
    answer = answer_with(exercise, question, ErrorMessage("It raises."), off if isinstance(off[0], tuple) else (off,))
    return answer if isinstance(answer, ErrorMessage) else {**right(exercise, question, {}), **answer}


def same(one, other):
    if isinstance(one, ErrorMessage) or isinstance(other, ErrorMessage):
        return isinstance(one, ErrorMessage) and isinstance(other, ErrorMessage)
    return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)


def by_hand(exercise):
    text = folders.skeleton(exercise.text["file"])
    tree = ast.parse(text)
    owner = next(node for node in tree.body if getattr(node, "name", "") == exercise.symbol)
    if "." in exercise.name:
        owner = next(node for node in owner.body if getattr(node, "name", "") == exercise.name.partition(".")[2])
    _, found, tail = ast.get_docstring(owner).partition("Two tokens by hand:")
    assert found
    return tail


FORGETS_ITS_SUM = ("return p * (dp - inner)", "return p * dp")


def spoil(file, *changes):
    """Write other texts into a file, which has the old ones."""
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


class TestCommands:
    def run(self, capsys, *argv):
        status = main(list(argv))
        return (status, *capsys.readouterr())

    @pytest.mark.smoke
    def test_the_path_is_listed(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        status, out, _ = self.run(capsys, "learn")
        assert status == 0
        assert [line.split(":")[0].strip() for line in out.splitlines() if ": " in line and line.startswith("  ")]
        for name in PATH:
            assert f"  {name}: " in out
        assert "attendax learn DIR" in out

    @pytest.mark.smoke
    def test_skeletons_are_written_and_nothing_is_lost(self, capsys, tmp_path):
        (tmp_path / "positional.py").write_text("mine = 1")
        status, out, _ = self.run(capsys, "learn", str(tmp_path))
        assert status == 0
        assert sorted(file.name for file in tmp_path.iterdir()) == sorted(f"{module}.py" for module in MODULES)
        assert (tmp_path / "positional.py").read_text() == "mine = 1"
        assert "kept" in out
        status, out, _ = self.run(capsys, "grade", str(tmp_path), "softmax", "create_causal_mask")
        assert status == 1
        assert "not yet written: 1; the next is softmax in" in out
        assert "module 'positional' has no attribute 'create_causal_mask'" in " ".join(out.split())

    def test_a_right_folder(self, capsys, folder, monkeypatch):
        begin = time.monotonic()
        status, out, _ = self.run(capsys, "grade", str(folder))
        assert (status, out.splitlines()[-1]) == (0, f"{len(PATH)} of {len(PATH)} right: all of it. Well done.")
        assert time.monotonic() - begin < len(PATH)
        assert not (folder / "__pycache__").exists()
        monkeypatch.chdir(folder)
        assert "right   softmax: " in self.run(capsys, "learn")[1]

    def test_wrong_functions_come_first_then_a_line_each_for_the_right_and_the_unwritten(self, capsys, folder):
        spoil(folder / "attention_core.py", FORGETS_ITS_SUM)
        unwritten = ("return x.swapaxes(1, 2)", "raise NotImplementedError; x = (x)")
        spoil(folder / "multi_head.py", unwritten, ("    B, T, M = x.shape", "    raise NotImplementedError"))
        names = ["softmax", "split_heads", "softmax_backward", "merge_heads", "create_causal_mask"]
        _, out, _ = self.run(capsys, "grade", str(folder), *names)
        lines = [line for line in out.splitlines() if line and not line.startswith(" ")]
        assert lines[0] == "wrong: softmax_backward"
        assert lines[1] == "right: softmax, create_causal_mask"
        assert lines[2].startswith("not yet written: 2; the next is split_heads")
        assert lines[3:] == ["2 of 5 right; 1 wrong, 2 not yet.", "For a hint, add --hint 1"]

    def test_what_is_wrong_is_said(self, capsys, folder):
        spoil(folder / "attention_core.py", FORGETS_ITS_SUM)
        given = ["grade", str(folder), "multi_head_attention_backward"]
        status, out, _ = self.run(capsys, *given)
        assert status == 1
        assert "wrong: multi_head_attention_backward\n  The gradient forgets that a row sums to 1.\n" in out
        assert "Subtract the sum of dp times p" not in out
        one, two = (" ".join(self.run(capsys, *given, "--hint", hint)[1].split()) for hint in "12")
        assert "Subtract the sum of dp times p" in one
        assert "dW_Q = Qᵀ dq" not in one
        assert "dW_Q = Qᵀ dq" in two
        assert "the columns of dC that the head owns" in self.run(capsys, *given, "--hint", "3")[1]

    def test_a_fault_upstream_is_told_once(self, capsys, folder):
        spoil(folder / "attention_core.py", ("total = e.sum(axis=axis, keepdims=True)", "total = 2 * e.max() + 1.0"))
        names = ["softmax", "attention_weights", "split_heads", "multi_head_attention_forward", "Attention"]
        _, out, _ = self.run(capsys, "grade", str(folder), *names)
        for name in ("attention_weights", "multi_head_attention_forward", "Attention"):
            said = " ".join(out.split())
            assert f"wrong: {name}: it calls softmax, which is wrong; fix it first " in said, out
        assert out.count("smallest input") == 1
        assert "right: split_heads" in out

    def test_of_two_faults_upstream_both_are_told(self, capsys, folder):
        """Which of them makes it wrong is not known."""
        spoil(folder / "attention_core.py", ("return e / where(total", "return 1.01 * e / where(total"))
        spoil(folder / "transformer_block.py", ("return gamma * hat + beta", "return hat + beta"))
        _, out, _ = self.run(capsys, "grade", str(folder), "softmax", "layer_norm", "TransformerEncoderBlock")
        said = " ".join(out.split())
        assert "TransformerEncoderBlock: it calls softmax and layer_norm, which are wrong; fix them first" in said, out

    def test_a_file_that_does_not_parse_is_one_line(self, capsys, folder):
        (folder / "positional.py").write_text("def create_causal_mask(:\n")
        status, out, _ = self.run(capsys, "grade", str(folder), "softmax", "create_causal_mask", "create_padding_mask")
        assert status == 1
        assert "right: softmax" in out
        said = [line for line in out.splitlines() if line.startswith("unread")]
        assert said == ["unread: positional.py: SyntaxError: invalid syntax (positional.py, line 1)"]

    def test_a_file_that_is_not_there(self, capsys, folder):
        for file in set(learner.files()) - {"attention_core.py"}:
            (folder / file).unlink()
        status, out, _ = self.run(capsys, "grade", str(folder), "softmax", "split_heads", "merge_heads")
        assert status == 1
        assert out.count("unread: multi_head.py: ModuleNotFoundError: No module named 'multi_head'") == 1
        assert "Missing files: multi_head.py" in " ".join(out.split())
        assert f"To write them, run: attendax learn {folder}" in out

    @pytest.mark.smoke
    def test_loops_and_crashes_end_nothing_else(self, capsys, folder):
        crash, loop = "import os; os._exit(7)", "while True: pass"
        changes = ("return x + pe[:T]", crash), ("return 0.02 * normal(max_length, d_model)", loop)
        spoil(folder / "positional.py", *changes)
        names = ["add_positional_encoding", "learned_positional_encoding", "create_causal_mask"]
        status, out, _ = self.run(capsys, "grade", str(folder), *names, "--seconds", "0.5")
        assert status == 1
        assert "It ended the process (status 7)" in out
        said = " ".join(out.split())
        assert re.search(r"did not end within 0.5 seconds \(positional.py, line \d+\)", said), said
        assert "right: create_causal_mask" in out

    def test_what_a_file_prints_or_asks_disturbs_nothing(self, capfd, folder):
        file = folder / "positional.py"
        file.write_text(
            file.read_text() + "\nprint('hello')\ntry:\n    input()\nexcept EOFError:\n    print('no input')\n"
        )
        assert main(["grade", str(folder), "create_causal_mask"]) == 0
        out, err = capfd.readouterr()
        assert "hello" not in out
        assert err.split() == ["hello", "no", "input"]

    @pytest.mark.parametrize("library", LIBRARIES[1:])
    def test_the_library_is_seen_in_the_files(self, capsys, tmp_path, library):
        assert self.run(capsys, "learn", str(tmp_path), f"--{library}")[0] == 0
        assert folders.library(tmp_path) == library
        (tmp_path / "attention_core.py").write_text(learner.files(library)["attention_core.py"])
        status, out, _ = self.run(capsys, "grade", str(tmp_path), "softmax", "split_heads")
        first = f"right: softmax not yet written: 1; the next is split_heads in {tmp_path / 'multi_head.py'} 1 of 2"
        assert status == 1
        assert " ".join(out.split()).startswith(first)

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["grade", "."], "has no exercises; to write them there, run: attendax learn ."),
            (["grade", "FOLDER", "sofmax"], "there is no exercise sofmax; did you mean softmax?"),
            (["grade", "FOLDER", "--seconds", "0"], "--seconds got 0, expected a number above 0"),
            (["grade", "FOLDER", "--hint", "4"], "--hint got 4, expected 0, 1, 2 or 3"),
            (["learn", "FOLDER", "--jax"], "holds exercises in numpy; for --jax name another folder"),
            (["learn", "FOLDER/attention_core.py"], "cannot write to"),
        ],
    )
    def test_refusals(self, capsys, folder, tmp_path_factory, monkeypatch, argv, words):
        monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
        status, _, err = self.run(capsys, *(word.replace("FOLDER", str(folder)) for word in argv))
        assert status == 2
        assert words in err

    def test_names_may_stand_behind_options(self, capsys, folder):
        status, out, _ = self.run(
            capsys, "grade", str(folder), "--hint", "2", "softmax", "--seconds", "5", "layer_norm"
        )
        assert (status, out.splitlines()[:2]) == (0, ["right: softmax, layer_norm", ""])

    def test_where_to_begin(self, capsys, tmp_path):
        assert "Begin with softmax" in self.run(capsys, "learn", str(tmp_path))[1]
        assert "Begin with" not in self.run(capsys, "learn", str(tmp_path))[1]
        out = self.run(capsys, "grade", str(tmp_path), "softmax", "split_heads")[1]
        place = f"the next is softmax in {tmp_path / 'attention_core.py'}"
        assert " ".join(out.split()) == f"not yet written: 2; {place} 0 of 2 right; 2 not yet. For a hint, add --hint 1"

    @pytest.mark.smoke
    def test_solutions_are_the_specification(self, capsys):
        status, out, _ = self.run(capsys, "learn", "--solutions")
        assert status == 0
        assert "∂pᵢ/∂xⱼ = pᵢ (δᵢⱼ - pⱼ)" in out
        places = re.findall(r"^  (\S+\.py):(\d+)$", out, re.MULTILINE)
        assert len(places) == len(PATH)
        for (file, number), exercise in zip(places, PATH.values(), strict=True):
            lines = Path(file).read_text("utf-8").splitlines()[int(number) - 1 :]
            line = next(line for line in lines if not line.strip().startswith("@"))
            assert exercise.name.rpartition(".")[2] in line

    def test_the_console_command_in_a_clean_folder(self, tmp_path):
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "100"}

        def run(*argv):
            command = [sys.executable, "-m", "attendax", *argv]
            return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

        assert run("learn", "mine").returncode == 0
        (tmp_path / "mine" / "attention_core.py").write_text(
            "import numpy as np\nfrom attendax.spec import *\nfrom attendax.spec import softmax, softmax_backward\n"
        )
        done = run("grade", "mine")
        assert done.returncode == 1
        assert f"8 of {len(PATH)} right; {len(PATH) - 8} not yet." in done.stdout, done.stdout + done.stderr


class TestPages:
    PAGE = (ROOT / "docs/learn.md").read_text("utf-8")
    NOTEBOOK = json.loads((ROOT / "docs/learn-in-class.ipynb").read_text("utf-8"))

    def test_shapes_are_drawn_in_the_colours_of_the_theme(self):
        pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")
        sys.path.insert(0, str(ROOT / "docs/_site"))
        try:
            import squares
        finally:
            sys.path.pop(0)
        lines = re.findall(r"^```\{shapes\} (.*)$", self.PAGE, re.MULTILINE)
        assert len(lines) >= 9
        for line in lines:
            drawn = ElementTree.fromstring(squares.drawn(line))
            styles = {node.get("style") for node in drawn.iter() if node.get("style")}
            assert all("var(--color-" in style for style in styles)

    def test_numbers_on_the_page(self):
        assert f"This course has {len(PATH)} exercises" in self.PAGE
        assert f"The grader knows {len(texts('mistakes'))} mistakes" in self.PAGE

    @pytest.mark.smoke
    def test_the_notebook_shows_what_its_cells_give(self):
        names, cells = {"__name__": "__main__"}, [c for c in self.NOTEBOOK["cells"] if c["cell_type"] == "code"]
        assert len(cells) == 5
        for cell in cells:
            *before, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(before, []), "cell", "exec"), names)
            if not isinstance(last, ast.Expr):
                exec(compile(ast.Module([last], []), "cell", "exec"), names)
                assert cell["outputs"] == []
                continue
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            (output,) = cell["outputs"]
            assert "".join(output["data"]["text/plain"]) == repr(value)
            assert "".join(output["data"]["text/html"]) == value._repr_html_()


@pytest.mark.parametrize("state", ["right", "wrong", "not yet", "unread"])
def test_a_verdict_is_read_on_a_light_and_on_a_dark_page(state):
    """Its colours do not depend on the page's, and WCAG's contrast of them is at least 4.5."""
    style = ElementTree.fromstring(Grade("softmax", state)._repr_html_()).find("b").get("style")
    colours = [[int(code[k : k + 2], 16) / 255 for k in (0, 2, 4)] for code in re.findall(r"#(\w{6})", style)]
    linear = [[x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour] for colour in colours]
    dark, light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in linear)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.smoke
def test_it_is_public():
    assert learn.grade is grade
    assert dir(learn) == ["Grade", "grade"]
