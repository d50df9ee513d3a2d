"""The kit in continuous integration: known failures, the schema of the JSON; data of the adapters."""

import json
from importlib.resources import files

import numpy as np
import pytest

import right_attention
from attendax.conformance import CASES, Verdict
from attendax.conformance.cases import choose, ladder
from attendax.conformance.cases.how import How
from attendax.conformance.judge.verdicts import Finding
from attendax.conformance.report import Report
from attendax.conformance.report.outcomes import SCHEMA_VERSION, Cause, Harm, Outcome
from attendax.conformance.report.summary import summary
from libraries import ADAPTERS, DOCUMENTED, KNOWN, SCRIPTS, Known, applied, matches, matrix
from stated import check

NAMES = {case.name: case for case in CASES}


def forgetful(query, key, value, *, scale=None, is_causal=False):
    return right_attention.attend(query, key, value, scale=scale)


def test_a_keyword_that_is_in_no_name_picks_its_cases():
    names = {case.name for case in choose(["offset"])}
    assert names == {case.name for case in choose(["cache"])}
    assert {case.name for case in choose(["return_lse"])} >= {"lse", "gradient: lse"}
    assert all("mask" in case.name for case in choose(["mask"]))
    with pytest.raises(ValueError, match="a part of a name such as cache, or a keyword such as offset"):
        choose(["offest"])


@pytest.fixture
def known(tmp_path):
    def write(*lines):
        (tmp_path / "known.txt").write_text("\n".join(lines))
        return str(tmp_path / "known.txt")

    return write


GIVEN = {
    "seed": 0,
    "arrays": "numpy",
    "level": "forward",
    "in_process": True,
    "only": ["causal, fewer queries", "causal, more queries", "scale given"],
}


@pytest.mark.smoke
def test_known_failures_are_told_and_not_counted(known):
    file = known("# ours", "", "xfail causal, fewer *  # until 2.0", "skip causal, more queries", "xfail scale given")
    report = check(forgetful, known_failures=file, **GIVEN)
    outcomes = {o.case.name: o for o in report.cases}
    assert report.ok
    assert outcomes["causal, fewer queries"].known == "until 2.0"
    assert outcomes["causal, fewer queries"].verdict is Verdict.SILENT
    assert outcomes["causal, more queries"].finding.message == "skipped: known"
    assert outcomes["scale given"].verdict is Verdict.OK  # and it is told that it no longer fails
    assert not check(forgetful, **GIVEN).ok
    assert summary(report) == "1 of 2 cases passes (1 known failure)."
    report = check(forgetful, known_failures=known("xfail causal, more queries"), **GIVEN)
    assert summary(report).startswith("1 of 3 cases fails, for ")
    assert summary(report).endswith(" (1 known failure).")


@pytest.mark.smoke
@pytest.mark.parametrize("line", ["xfial causal", "skip", "skip no such case", "xfail"])
def test_a_line_that_says_nothing_is_refused(known, line):
    with pytest.raises(ValueError, match=r"known_failures .*, line 1: got"):
        check(forgetful, known_failures=known(line), **GIVEN)


@pytest.mark.smoke
def test_no_such_file():
    with pytest.raises(ValueError, match="known_failures nowhere"):
        check(forgetful, known_failures="nowhere", **GIVEN)


def fits(value, schema, root):
    """As much of JSON Schema as the report's uses."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(isinstance(value, kinds[t]) for t in types), (value, schema)
    assert value in schema.get("enum", [value]), (value, schema)
    assert value == schema.get("const", value)
    for name in schema.get("required", ()):
        assert name in value, name
    for name, part in schema.get("properties", {}).items():
        if name in value:
            fits(value[name], part, root)
    if isinstance(value, dict) and "properties" in schema:
        assert value.keys() <= schema["properties"].keys(), value.keys() - schema["properties"].keys()
    for item in value if "items" in schema else ():
        fits(item, schema["items"], root)


def test_the_json_is_as_its_schema_says():
    schema = json.loads(files("attendax.conformance.report").joinpath("report.schema.json").read_text("utf-8"))
    report = json.loads(check(forgetful, **GIVEN).to_json())
    assert report["schema_version"] == SCHEMA_VERSION == schema["properties"]["schema_version"]["const"]
    assert report["causes"]
    fits(report, schema, schema)


# What is known of libraries


@pytest.fixture(scope="module")
def picked():
    """Names of cases: those that are written, and those that a few runs draw."""
    return [*NAMES, *(case.name for seed in range(5) for case in ladder.ladder(How(seed=seed)).cases)]


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_entry_picks_cases_and_has_its_source(name, picked):
    documented, known = DOCUMENTED.get(name, ()), KNOWN.get(name, ())
    for entry in (*documented, *known):
        assert all(any(matches((pattern,), case) for case in picked) for pattern in entry.cases), entry
    for entry in documented:
        assert entry.source
        assert ":" in entry.source
    for entry in known:
        assert entry.where
        if entry.kind != "robustness gap":
            assert entry.report, entry.name
            assert 3 <= len(entry.script.splitlines()) <= 12, entry.name
            compile(entry.script, entry.name, "exec")
            assert "attendax" not in entry.script


def test_every_script_belongs_to_a_cause():
    scripts = {entry.name for entries in KNOWN.values() for entry in entries if entry.script}
    assert SCRIPTS.keys() == scripts


def test_by_design_is_neither_a_fault_nor_a_pass():
    leak, plain = NAMES["leak: NaN in a masked value"], NAMES["plain"]
    found = (leak, Finding(Verdict.LEAK, "120 of 120; NaN")), (plain, Finding(Verdict.WRONG, "off"))
    outcomes = tuple(Outcome(case, finding, 0.0, "") for case, finding in found)
    both = Cause("one reason", Harm.NUMBERS, (leak.name, plain.name), tried=2)
    report = applied(Report("torch-sdpa", "", "torch", outcomes, causes=(both,)), DOCUMENTED["torch-sdpa"], ())
    assert [outcome.case.name for outcome in report.failures] == ["plain"]
    assert report.causes == (both._replace(cases=("plain",), tried=1),)
    assert "functional.py:6365" in report.cases[0].known
    assert matrix.tables.matrix_row(report) == ["1", "-", "-", "1", "-", "-", "-"]
    assert "- " + report.cases[0].known.removeprefix("by design: ")[:20] in matrix.tables.matrix_markdown([report])
    told = json.loads(matrix.tables.reports_json([report], {}))["reports"][0]
    assert [case["verdict"] for case in told["cases"]] == ["by design", "wrong"]
    assert told["counts"] == {"by design": 1, "wrong": 1}


def test_faults_of_a_known_cause_are_of_it_alone():
    plain, causal = NAMES["plain"], NAMES["causal, fewer queries"]
    outcomes = tuple(Outcome(case, Finding(Verdict.WRONG, "off"), 0.0, "") for case in (plain, causal))
    seen = Cause("causal is ignored", Harm.NUMBERS, (causal.name, plain.name))
    entry = Known("a race", "wrong numbers", ("causal*",), where="mine.py:7", report="It races.", script="assert 0")
    report = applied(Report("mine", "", "numpy", outcomes, causes=(seen,)), (), (entry,))
    assert [(cause.name, cause.cases) for cause in report.causes] == [
        ("a race", (causal.name,)), ("causal is ignored", (plain.name,))
    ]  # fmt: skip
    assert report.causes[0].script == "assert 0"
    assert report.causes[0].harm is Harm.NUMBERS


def test_a_known_cause_is_written_with_its_place_and_its_text():
    entry = next(entry for entries in KNOWN.values() for entry in entries if entry.report)
    outcome = Outcome(NAMES["plain"], Finding(Verdict.WRONG, "off"), 0.0, "")
    cause = Cause(entry.name, Harm.NUMBERS, ("plain",), script=entry.script)
    report = Report("mine", "", "numpy", (outcome,), causes=(cause,))
    text = matrix.tables.matrix_markdown([report])
    assert "- where: " in text
    assert entry.report.splitlines()[0] in text
    told = json.loads(matrix.tables.reports_json([report], {}))["reports"][0]["causes"][0]
    assert (told["where"], told["report"]) == (entry.where, entry.report)


@pytest.mark.smoke
@pytest.mark.parametrize("sizes", [{"B": 2, "N": 4, "G": 2, "T": 64, "S": 64, "D": 64}, {"T": 130, "S": 70}, {"T": 0}])
def test_the_cases_that_are_left_at_other_sizes_have_them(sizes):
    """A case whose lines give numbers of its own sizes makes no sense at others."""
    from attendax.conformance.cases import at_sizes
    from attendax.conformance.cases.case import allowed_pairs

    left = at_sizes(CASES, sizes)
    assert len(left) > 100
    for case in left:
        inputs = case.inputs(0, "float32")
        shape = (*inputs.arrays["query"].shape[:-1], inputs.arrays["key"].shape[-2])
        np.broadcast_to(allowed_pairs(inputs), shape)
