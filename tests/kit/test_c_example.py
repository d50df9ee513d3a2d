"""``docs/examples/c``: attention with its gradients in C is right by ``--exec``; a mistake is not."""

import shutil
import subprocess

import pytest

from attendax.conformance import check
from places import ROOT

HOME = ROOT / "docs" / "examples" / "c"
TEXT = (HOME / "attention.c").read_text("utf-8")
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler cc here")
SOME = ("grouped heads", "lse", "window with a mask", "key lengths", "lengths that no block divides", "logits to 100")
FORWARD, BACKWARD = "allowed && !allowed[row * S + start + j]", "if (allowed && !allowed[row * S + j]) continue;"
MISTAKES = {  # a cause, as the kit names it first; what is replaced by what; and cases that are enough to see it
    "mask is ignored": ({FORWARD: "0", BACKWARD: ""}, ("mask (",)),
    "in the backward, mask is ignored": ({BACKWARD: ""}, ("gradient: mask (",)),
    "every batch gets the mask of the first": (
        {FORWARD: FORWARD.replace("row *", "row % (N * T) *"), BACKWARD: BACKWARD.replace("row *", "row % (N * T) *")},
        ("mask (B",),
    ),
    "scores are not scaled": ({"scale * dot(": "dot("}, ("plain",)),
    "the sum is not multiplied by exp(old maximum - new maximum)": (
        {"total *= kept": "total *= 1"},
        ("lengths that no block divides",),
    ),
    "the output is not multiplied by exp(old maximum - new maximum)": (
        {"mixed[c] *= kept": "mixed[c] *= 1"},
        ("lengths that no block divides",),
    ),
    "keys behind the last whole block are left out": (
        {"start < S; start += TILE) {": "!start || start + TILE <= S; start += TILE) {"},
        ("lengths that no block divides",),
    ),
    "key heads are tiled (n % G)": ({"head % N / (N / G)": "head % N % G"}, ("grouped heads",)),
    "the row sum of P · dP is not subtracted": ({", V) - delta)": ", V))"}, ("gradient: plain",)),
    "not multiplied by the scale": ({"scale * grad * q[c]": "grad * q[c]"}, ("gradient: plain",)),
    "the cotangent of lse is ignored": ({"(cotangent_lse ? cotangent_lse[row] : 0)": "0"}, ("gradient: lse",)),
    "lse is in base 2": (
        {"= most + log(total)": "= 1.442695f * (most + log(total))", "- lse[row])": "- lse[row] / 1.442695f)"},
        ("lse",),
    ),
}  # fmt: skip
QUICK = ("in the backward, mask is ignored", "key heads are tiled (n % G)", "lse is in base 2")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A function that compiles the program, with other text in place of some, and gives its path."""
    folder = tmp_path_factory.mktemp("c")

    def build(name="program", replaced=None):
        out = folder / name
        if not out.exists():
            text = TEXT
            for old, new in (replaced or {}).items():
                assert old in text
                text = text.replace(old, new)
            (folder / "attention.c").write_text(text)
            warn = ["-Wall", "-Werror"] if not replaced else []
            files = [str(folder / "attention.c"), str(HOME / "program.c")]
            subprocess.run([COMPILER, *warn, "-O2", "-I", str(HOME), "-o", str(out), *files, "-lm"], check=True)
        return f"exec:{out} {{case}}"

    return build


def judged(path, only, **asked):
    return check(path, only=only, **{"budget": 0, "repeat": 1, "seed": 7} | asked)


def is_right(report):
    assert report.ok, report
    right = report.coverage.judged
    return right["results"][0], right.get("gradients", (0, 0))[0]


def test_its_size():
    """It is a page: 60 to 80 lines, and it is cut into tiles."""
    assert 60 <= len(TEXT.splitlines()) <= 80
    assert "TILE" in TEXT


def test_it_is_right(built):
    results, gradients = is_right(judged(built(), SOME))
    assert results >= 20
    assert gradients >= 10


@pytest.mark.slow
def test_it_is_right_at_all_sizes(built):
    results, gradients = is_right(check(built(), profile="robust", budget=15, thorough=True))
    assert results >= 90
    assert gradients >= 60


@pytest.mark.parametrize("cause", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in MISTAKES])
def test_a_mistake_is_named_first(cause, built):
    replaced, only = MISTAKES[cause]
    report = judged(built(f"mistake{list(MISTAKES).index(cause)}", replaced), only)
    assert not report.ok
    assert cause in report.causes[0].name


@pytest.mark.slow
@pytest.mark.parametrize("cause", MISTAKES)
def test_a_mistake_is_named_first_among_all_cases(cause, built):
    replaced, _ = MISTAKES[cause]
    report = judged(built(f"mistake{list(MISTAKES).index(cause)}", replaced), ())
    assert not report.ok
    names = {cause} | {cause.replace("mask", "is_causal")}  # causal and masks are one array there: both are ignored
    assert any(name in report.causes[0].name for name in names)


def test_a_program_that_crashes_is_a_crash(built):
    """The report is written."""
    first = "float most = -INFINITY;"
    aborts = {first: f"{first}\n        if (fabsf(scale * scale * D - 1) > 0.01f) abort();"}
    report = judged(built("crash", aborts), ["scale given"], level="forward")
    assert [outcome.finding.message for outcome in report.cases] == ["its process was ended by SIGABRT"]
    assert not report.ok
