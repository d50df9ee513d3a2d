"""``docs/examples/c``: attention with its gradients in C is right by ``--exec`` and ``--lib``; a mistake is not."""

import json
import shutil
import subprocess

import pytest

from attendax.cli import main
from attendax.conformance import check
from attendax.conformance.worker.foreign import path_of
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
    """A function that compiles the library, with other text in place of some, or the program."""
    folder = tmp_path_factory.mktemp("c")

    def build(name, replaced=None, sources=("attention.c",)):
        out = folder / name
        if not out.exists():
            text = TEXT
            for old, new in (replaced or {}).items():
                assert old in text
                text = text.replace(old, new)
            (folder / "attention.c").write_text(text)
            files = [str(folder / "attention.c"), *(str(HOME / source) for source in sources[1:])]
            shared = ["-shared", "-fPIC"] if name.endswith(".so") else []
            warn = ["-Wall", "-Werror"] if not replaced else []
            command = [COMPILER, *warn, "-O2", *shared, "-I", str(HOME), "-o", str(out), *files, "-lm"]
            subprocess.run(command, check=True)
        return str(out)

    return build


@pytest.fixture
def library(built):
    return built("attention.so")


@pytest.fixture
def program(built):
    return built("program", sources=("attention.c", "program.c"))


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


@pytest.mark.parametrize("way", ["exec", "lib"])
def test_it_is_right(way, library, program):
    path = path_of(program=f"{program} {{case}}") if way == "exec" else path_of(library=library)
    results, gradients = is_right(judged(path, SOME))
    assert results >= 20
    assert gradients >= 10


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exec", "lib"])
def test_it_is_right_at_all_sizes(way, library, program):
    path = path_of(program=f"{program} {{case}}") if way == "exec" else path_of(library=library)
    results, gradients = is_right(check(path, profile="robust", budget=15, thorough=True))
    assert results >= 90
    assert gradients >= 60


@pytest.mark.parametrize("cause", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in MISTAKES])
def test_a_mistake_is_named_first(cause, built):
    replaced, only = MISTAKES[cause]
    report = judged(path_of(library=built(f"mistake{list(MISTAKES).index(cause)}.so", replaced)), only)
    assert not report.ok
    assert cause in report.causes[0].name


@pytest.mark.slow
@pytest.mark.parametrize("cause", MISTAKES)
def test_a_mistake_is_named_first_among_all_cases(cause, built):
    replaced, _ = MISTAKES[cause]
    report = judged(path_of(library=built(f"mistake{list(MISTAKES).index(cause)}.so", replaced)), ())
    assert not report.ok
    names = {cause} | {cause.replace("mask", "is_causal")}  # causal and masks are one array there: both are ignored
    assert any(name in report.causes[0].name for name in names)


OTHER = """
#include "attendax.h"
#include <math.h>
#include <stdlib.h>
int mine(int S, int T, int B, int N, int D, int is_causal, const float *key, const float *query, const float *value,
          float *out) {
    unsigned char *allowed = malloc((size_t)B * N * T * S + 1);
    for (long i = 0; i < (long)B * N * T * S; i++) allowed[i] = !is_causal || i % S <= i / S % T;
    attendax_forward(query, key, value, 0, allowed, out, 0, B, N, N, T, S, D, D, 1 / sqrtf(D), 0);
    free(allowed);
    return 0;
}
int half(const float *query, const float *key, const float *value, float *out) { return 4; }
"""


@pytest.fixture
def other(tmp_path):
    """A library of other names, another order and fewer arguments."""
    (tmp_path / "other.c").write_text(OTHER)
    out = str(tmp_path / "other.so")
    files = [str(tmp_path / "other.c"), str(HOME / "attention.c")]
    subprocess.run([COMPILER, "-shared", "-fPIC", "-I", str(HOME), "-o", out, *files, "-lm"], check=True)

    def with_signature(**functions):
        path = tmp_path / "signature.json"
        path.write_text(json.dumps({"schema": 1} | functions))
        return path_of(library=out, signature=str(path))

    return with_signature


ORDER = ["S", "T", "B", "N", "D", "is_causal", "key", "query", "value", "out"]
MINE = {
    "symbol": "mine",
    "sizes": "int32",
    "order": ["S", "T", "B", "N", "D", "is_causal", "key", "query", "value", "out"],
}


def test_another_signature(other):
    """What has no place in the order is not offered."""
    report = judged(
        other(forward=MINE), ["plain", "causal, fewer queries", "scale given", "grouped heads", "mask (T, S)"]
    )
    verdicts = {outcome.case.name: outcome.verdict for outcome in report.cases}
    assert verdicts["plain"] == verdicts["causal, fewer queries"] == "ok"
    for name in ("scale given", "grouped heads", "mask (T, S)", "gradient: plain"):
        assert verdicts[name] == "not offered", name
    assert report.ok


def test_a_status_that_is_none_is_a_fault(other):
    with pytest.raises(ValueError, match="fails on the plainest call, float32: its forward gave status 4"):
        judged(other(forward={"symbol": "half", "order": ORDER}), ["plain"])


def test_a_library_without_the_symbol(other, capfd):
    path = other(forward={"symbol": "nobody"}).split(":")
    assert main(["check", "--lib", path[1], "--signature", path[2], "--quiet"]) == 2
    said = capfd.readouterr().err.strip()
    assert "other.so has no symbol 'nobody': name its forward in a file of --signature" in said
    assert "\n" not in said


def test_a_library_that_crashes_is_a_crash(built):
    """In the process that has it: the report is written."""
    aborts = {"if (bias || softcap)": "if (fabsf(scale * scale * D - 1) > 0.01f) abort();\n    if (bias || softcap)"}
    report = judged(path_of(library=built("crash.so", aborts)), ["scale given"], level="forward")
    assert [outcome.finding.message for outcome in report.cases] == ["its process was ended by SIGABRT"]
    assert not report.ok
