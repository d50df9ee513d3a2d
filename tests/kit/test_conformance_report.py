"""What a report shows: JSON, Markdown, the terminal and the page, with texts that try to break each of them."""

import io
import json
import math
import re

import numpy as np
import pytest

from attendax.conformance import CASES, Finding, Outcome, Report, Verdict
from attendax.conformance.report.markdown import markdown
from attendax.conformance.report.outcomes import Cause, Harm, times
from attendax.conformance.report.summary import terminal
from dying import right
from libraries import matrix
from planted import by_law
from stated import check

AWKWARD = "[bold]x[/bold] <script>alert(1)</script> | a `tick` *star* </pre>\x1b[31m é"
SCRIPT = 'print("""```""")  # </pre><script>alert(2)</script> [red]'
BY_NAME = {case.name: case for case in CASES}


def outcome(name, verdict=Verdict.OK, message="", **finding):
    found = Finding(verdict, message, **finding)
    return Outcome(BY_NAME[name], found, 0.25, SCRIPT if verdict.fails else "")


@pytest.fixture
def awkward():
    """One of each verdict, the numbers not all finite."""
    place = {"leaf": "out", "index": (0, 1, 2, 3)}
    cases = (
        outcome("plain", leaf="out", index=(0, 0), expected=1.0, got=1.0, error=1e-7, allowed=4e-7, dense_error=2e-7),
        outcome(
            "scale given",
            Verdict.WRONG,
            AWKWARD,
            **place,
            expected=math.inf,
            got=-math.inf,
            error=math.inf,
            allowed=2e-7,
        ),
        outcome("causal", Verdict.NAN, "out is NaN at 3 of 5", **place, expected=0.25, got=math.nan),
        outcome("mask (T, S)", Verdict.CONVENTION, "a query without any key gets NaN"),
        outcome("lse", Verdict.NOT_OFFERED, "no argument return_lse"),
        outcome("lse, scale", Verdict.NOT_OFFERED, "no argument return_lse"),
        outcome("repeated", Verdict.LEAK, "2 of 5 numbers of out change", **place, expected=0.0, got=1.0),
        outcome("dropout: share", Verdict.SILENT, "the result is as if dropout_rate were not given"),
        outcome("gradient: plain", Verdict.OBSCURE, "KeyError: 'x'"),
    )
    return Report(f"mine:{AWKWARD}", "1.0", "numpy", cases, versions={"python": "3.11", "numpy": "2"})


@pytest.fixture
def clean():
    return by_law(right, arrays="numpy", only=["scale given", "width 1"], level="forward")


class TestReport:
    def test_laws_tell_the_worst_error_as_a_multiple(self, awkward):
        laws = awkward.laws()
        assert list(laws) == ["L2", "L3", "L4", "L9", "L10", "L13", "L15"]
        assert laws["L2"].worst.case.name == "scale given"
        assert laws["L2"].worst.multiple == math.inf
        assert (len(laws["L2"].failures), laws["L2"].number(Verdict.OK)) == (1, 1)
        assert laws["L9"].number(Verdict.NOT_OFFERED) == 2
        assert laws["L4"].worst is None
        np.testing.assert_allclose(awkward.cases[0].multiple, 0.25)

    @pytest.mark.parametrize(
        ("error", "allowed", "multiple"),
        [
            (None, 1.0, None),
            (1.0, None, None),
            (math.nan, 1.0, None),
            (0.0, 0.0, 0.0),
            (1.0, 0.0, math.inf),
            (3.0, 2.0, 1.5),
        ],
    )
    def test_multiple(self, error, allowed, multiple):
        assert outcome("plain", error=error, allowed=allowed).multiple == multiple

    def test_told_names_place_and_numbers(self, awkward):
        told = awkward.cases[2].told()
        assert told == "NaN: out is NaN at 3 of 5; at out[0, 1, 2, 3]; expected 0.25; got nan"
        near = outcome("plain", Verdict.WRONG, "off", leaf="out", index=(0,), expected=1.0, got=1.0 + 1e-11)
        assert near.facts()["expected"] != near.facts()["got"]

    def test_json_is_strict_and_comes_back(self, awkward):
        def refuse(constant):
            raise AssertionError(constant)

        found = json.loads(awkward.to_json(), parse_constant=refuse)
        assert found["cases"][1]["expected"] == "inf"
        assert found["cases"][2]["got"] == "nan"
        again = matrix.tables.report_from(found)
        assert again.to_json() == awkward.to_json()
        assert again.cases[1].finding.index == (0, 1, 2, 3)
        assert again.cases[1].finding.got == -math.inf
        assert math.isnan(again.cases[2].finding.got)
        assert again.failures[0].verdict is Verdict.WRONG

    def test_real_report_comes_back(self, clean):
        again = matrix.tables.report_from(json.loads(clean.to_json()))
        assert again.ok
        assert again.laws().keys() == clean.laws().keys()
        findings = [o.finding._replace(off=None) for o in clean.cases]  # ``off`` is for the script, which is there
        assert [o.finding for o in again.cases] == findings
        assert clean.versions["numpy"] == np.__version__


class TestMarkdown:
    def test_holds_everything(self, awkward):
        text = markdown(awkward)
        for part in (
            "## Laws",
            "## Faults",
            "## Differs by convention",
            "## Not offered",
            "numpy 2",
            "float32",
            "seed",
        ):
            assert part in text
        assert text.count("````python\n") == len(awkward.failures) == 5
        assert "| no argument return\\_lse | L9 lse; L9 lse, scale |" in text
        assert "at 3 of 5" in text
        assert "\x1b" not in text

    def test_rows_have_as_many_cells_as_their_header(self, awkward, clean):
        for text in (
            markdown(awkward),
            markdown(clean),
            matrix.tables.matrix_markdown([awkward, clean], {"x|y": "a|b"}),
        ):
            blocks = re.findall(r"(?:^\|.*\n)+", text, re.M)
            assert blocks
            for block in blocks:
                cells = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
                assert len(cells) == 1, block

    def test_no_html_of_the_message_is_left(self, awkward):
        outside = re.sub(r"````python\n.*?\n````\n", "", markdown(awkward), flags=re.S)
        assert not re.search(r"(?<!\\)<", outside)

    def test_matrix(self, awkward, clean):
        text = matrix.tables.matrix_markdown([awkward, clean], {"other": "needs a GPU"})
        header, _, first, second = text.splitlines()[2:6]
        assert header.split(" | ")[1:5] == ["wrong numbers", "crash", "robustness gap", "by design"]
        assert first.split(" | ")[-4:] == ["-", "1", "1", "2 |"]
        assert second.split(" | ")[-4:] == ["-", "-", "3", "- |"]
        assert "- other: needs a GPU" in text


class TestTerminal:
    @pytest.fixture
    def printed(self):
        rich = pytest.importorskip("rich.console", reason="the extra 'check' is not installed")

        def run(show, *args, width=80, colour=False):
            out = io.StringIO()
            console = rich.Console(file=out, width=width, force_terminal=colour, highlight=False)
            show(*args[:1], console, *args[1:])
            return out.getvalue()

        return run

    @pytest.mark.parametrize("width", [40, 80, 120])
    def test_fits(self, printed, awkward, clean, width):
        for report in (awkward._replace(name="mine"), clean):
            text = re.sub(r"\x1b\[[0-9;]*m", "", printed(terminal, report, width=width, colour=True))
            assert max(len(line) for line in text.splitlines()) <= width
            assert "…" not in text

    def test_markup_is_text(self, printed, awkward):
        text = printed(terminal, awkward)
        assert "[bold]x[/bold] <script>" in " ".join(text.split())
        assert "\x1b" not in text
        assert "5 of 7 cases fail" in " ".join(text.split())

    def test_a_pipe_gets_the_words_of_a_screen_each_line_whole(self, printed, awkward):
        plain = printed(terminal, awkward, width=40)
        screen = re.sub(r"\x1b\[[0-9;]*m", "", printed(terminal, awkward, width=40, colour=True))
        assert screen.split() == plain.split()
        assert max(map(len, plain.splitlines())) > 40
        assert SCRIPT not in plain
        assert "--reproduce" in plain

    @pytest.mark.smoke
    def test_scripts_come_when_they_are_asked_for(self, printed, awkward):
        text = printed(lambda report, console: terminal(report, console, scripts=True), awkward)
        assert text.count(SCRIPT) == len(awkward.failures)

    @pytest.mark.parametrize(
        ("cause", "lines"),
        [
            (
                Cause("off by one", Harm.NUMBERS, ("causal", "plain"), tried=1),
                "1. wrong numbers: off by one 2 cases, such as 'causal' (L4). "
                "The cause is confirmed in 1 case: correct attention with this mistake added gives the same results. "
                "It is not confirmed in the other case.",
            ),
            (
                Cause("off by one", Harm.NUMBERS, ("causal",), tried=1),
                "1. wrong numbers: off by one 'causal' (L4). "
                "The cause is confirmed: correct attention with this mistake added gives the same result.",
            ),
            (
                Cause("zeros", Harm.NUMBERS, ("causal", "plain"), least=True),
                "1. wrong numbers: zeros 2 cases, such as 'causal' (L4): expected 0.25, got nan. "
                "The cases may have several causes.",
            ),
            (
                Cause("future: sees all", Harm.NUMBERS, ("causal",)),
                "1. wrong numbers (future): sees all 'causal' (L4): expected 0.25, got nan",
            ),
        ],
    )
    def test_a_cause_and_its_cases(self, printed, awkward, cause, lines):
        assert lines in " ".join(printed(terminal, awkward._replace(causes=(cause,))).split())

    @pytest.mark.parametrize("width", [40, 60, 80])
    def test_a_matrix_fits(self, printed, awkward, clean, width):
        reports = [clean._replace(name="a-very-long-name-of-a-library-indeed"), awkward]
        text = printed(matrix.tables.matrix_terminal, reports, {"left [bold]": "[red]no[/red]"}, width=width)
        lines = text.splitlines()
        assert max(map(len, lines)) <= width
        assert {"wrong", "crash", "gap", "ok"} <= set(lines[1].split())
        assert "left [bold]: [red]no[/red]" in text

    @pytest.mark.parametrize(
        ("multiple", "words"),
        [(0.0, "0.00 x"), (0.5, "0.50 x"), (99.99, "99.99 x"), (1e12, "1e12 x"), (math.inf, "inf x")],
    )
    def test_times(self, multiple, words):
        assert times(multiple) == words
        assert len(words) <= 7


def test_a_report_is_a_line(awkward, clean):
    """In an f-string and in an interpreter; all of it is in ``to_dict``."""
    words = f"3 of {len(clean.cases)} cases pass. 3 results are right."
    assert f"{clean}" == f"{clean.name} {clean.version}".strip() + f": {words}"
    for report in (awkward, clean):
        for line in (f"{report}", f"{report!r}", str(report), f"{[report]}"):
            assert "\n" not in line
            assert len(line) < 400
            assert report.name.split()[0] in line
        assert f"{report:>500}" == str(report).rjust(500)


def test_only_none_is_every_case():
    sizes = {axis: 1 for axis in "BNGTS"}
    found = [
        check(right, arrays="numpy", level="forward", sizes=sizes, budget=0, **only).cases
        for only in ({}, {"only": None})
    ]
    assert [outcome.case for outcome in found[0]] == [outcome.case for outcome in found[1]]
    assert len(found[0]) > 20
