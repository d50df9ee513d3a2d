"""Numbers on the pages: each follows from the committed results, or says when and where it was measured."""

import copy
import platform
import re
import sys

import jaxlib
import pytest

from attendax.conformance.cases import how
from places import ROOT

FOLDER = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "benchmarks"))

import devices  # noqa: E402
import kit as of_kit  # noqa: E402
import linear  # noqa: E402
import measured  # noqa: E402
import report  # noqa: E402
import statements  # noqa: E402
from committed import committed  # noqa: E402
from contestants import OURS  # noqa: E402

RESULTS = committed()
PAGES = [pytest.param(page.read_text("utf-8"), id=str(page.relative_to(ROOT))) for page in measured.pages()]
STATED = [page for page in PAGES if measured.MARKED.search(page.values[0])]


@pytest.mark.parametrize("page", STATED)
def test_what_a_page_says_follows_from_the_results(page):
    assert measured.anew(page, RESULTS) == (page, []), "python benchmarks/measured.py writes it anew"


def test_every_statement_stands_on_one_page():
    found = [name for page in STATED for name, _, _ in measured.MARKED.findall(page.values[0])]
    assert sorted(found) == sorted(measured.STATEMENTS)
    ends = sum(page.values[0].count("<!-- end -->") for page in STATED)
    assert ends == len(found), "a statement without its end"
    for page in STATED:
        inside = re.search(r"^ *<!-- measured: [a-z]\w* -->(?!\n)", page.values[0], re.MULTILINE)
        assert inside is None, "a comment that begins a line ends the paragraph"


class TestOtherNumbers:
    """Tables that are made anew change the pages, and words that hold no longer are found."""

    def slower(self):
        """The full run as if attendax took a thousand times as long."""
        full = copy.deepcopy(RESULTS.full)
        for record in full["records"]:
            if record["contestant"] == OURS and record["status"] == "timed":
                record["seconds"] = [1000 * x for x in record["seconds"]]
        return full

    def test_a_slower_attendax_is_said_to_be(self):
        results = RESULTS._replace(full=self.slower())
        first = re.search(r"\| ([\d.]+) \| (\d+) of (\d+) \|", statements.speed(results))
        assert first[1] == "0.00"
        assert first[2] == first[3]
        assert "| torch SDPA | 0.00 | 0.00 |" in statements.means(results)
        ahead = statements.who_is_ahead(results)
        assert ahead.startswith("On this machine, torch is faster than attendax in some shapes.")
        assert re.search(r"^\| torch-sdpa \| `minilm-128` \| forward \| 0.00 \|$", ahead, re.MULTILINE)

    @pytest.mark.parametrize("field", [field for field in statements.RUNS if field != "full"])
    def test_each_run_has_a_row(self, field):
        words, folder = statements.RUNS[field]
        none = RESULTS._replace(**{field: None})
        assert f"| {words} | no committed run in `benchmarks/results/{folder}` |" in statements.beside_torch(none)
        assert f"| {words} |" not in statements.where_measured(none)
        slow = RESULTS._replace(**{field: self.slower()})
        assert re.search(
            rf"^\| {words} \| 0.00 \| .*\| `minilm-128` \(forward 0.00", statements.beside_torch(slow), re.MULTILINE
        )
        assert re.search(rf"^\| {words} \| .*\| \d+%", statements.where_measured(slow), re.MULTILINE)

    def test_rounds_in_which_the_cores_were_far_apart_do_not_count(self):
        near, mixed = copy.deepcopy(RESULTS), copy.deepcopy(RESULTS)
        for results, more in ((near, []), (mixed, [1e9])):
            for record in results.cores["cores"]["records"]:
                if record["status"] == "timed":
                    record["round_trips_ns"] = [1.0] * len(record["seconds"]["1"]) + more
                    record["seconds"] = {count: own + more for count, own in record["seconds"].items()}
        assert statements.with_more_cores(near) == statements.with_more_cores(mixed)

    def test_words_that_do_not_hold(self):
        results = copy.deepcopy(RESULTS)
        for record in results.compile["compile"]:
            if (record["contestant"], record["case"]) == (OURS, "ragged"):
                record["rounds"] = [{"cpu_s": [1000 * x for x in one["cpu_s"]]} for one in record["rounds"]]
        page = "<!-- measured: compile_times -->1<!-- end --> <!-- measured: means -->1<!-- end -->"
        text, (why,) = measured.anew(page, results)
        assert why.startswith('compile_times: does not hold any more: "every shape compiles sooner')
        assert text == page.replace("means -->1", f"means -->{statements.means(results)}")

    def test_a_statement_that_is_not_there(self):
        page = "<!-- measured: sped -->1<!-- end -->"
        text, (why,) = measured.anew(page, RESULTS)
        assert (text, why[:30]) == (page, "sped: there is no such stateme")


def test_the_tables_are_of_one_commit_one_day_and_one_machine():
    about = [run["about"] for run in RESULTS.runs.values()]
    for what in ("commit", "processor", "cache_bytes", "threads"):
        assert [one[what] for one in about] == [about[0][what]] * len(about), what
    assert len({one["date"][:10] for one in about}) == 1
    assert not any(one["uncommitted_changes"] for one in about)


def test_the_tables_to_read_follow_from_those_to_compute_with():
    written = {name: (FOLDER / name / "results.md").read_text("utf-8") for name in RESULTS.runs}
    assert written == {name: report.markdown(run) for name, run in RESULTS.runs.items()}


def test_the_table_of_devices_follows_too():
    assert devices.page(RESULTS.devices) == (FOLDER / "devices.md").read_text("utf-8")


def test_cases_are_asked_in_the_order_of_what_they_find():
    assert [*how.PLAINEST, *of_kit.order_of(RESULTS.kit["cases"]["rows"]), *how.UNCOVERED] == list(how.FIRST_CASES)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="XLA takes other memory on another kind of processor")
@pytest.mark.parametrize("direction", ["forward", "gradient", "jvp", "forward over reverse"])
def test_the_table_of_memory_is_what_xla_says(direction):
    written = RESULTS.linear["about"]["versions"]["jaxlib"]
    if jaxlib.__version__ != written:
        pytest.skip(f"the table is of jaxlib {written}")
    function = linear.directions(linear.options_for("causal", 4096))[direction]
    program, _ = linear.compiled(function, 4096)
    said = RESULTS.linear["memory"][f"causal, {direction}"]["bytes"][0]
    assert program.memory_analysis().temp_size_in_bytes == pytest.approx(said, rel=0.02)


# Numbers without a source

UNIT = r"(?:[nµm]s|s|seconds?|minutes?|hours?|[KMG]i?B|[GT]FLOPs?(?:/s)?|%|page faults|times (?:as|its|the|of|in|that))"
QUANTITY = re.compile(rf"\b\d[\d.,]*(?: (?:to|or|and) \d[\d.,]*)?\s?{UNIT}(?!\w)|\b\d\.\d\d? / \d\.\d\d?\b")
IN_A_TABLE = re.compile(r"\b(?:ms|[KMG]i?B|seconds|times as)\b")
SOURCE = re.compile(r"measured (?:on|by) \d{4}-\d\d-\d\d, commit [0-9a-f]{7}, \w+ cores?\b")
OF_THE_PAGE, OF_THE_SECTION = "All numbers of this page were measured on", "all numbers here were measured on"
UNMEASURED = {  # sizes, limits and definitions, by page
    "attention.md": "an array of 16,384 x 16,384 scores would take 4,096 MiB",
    "laws/L8.md": "most 8 times the plain formula's",
}


def blocks(page):
    """Paragraphs, items of lists and tables, each after the heading of its section, without code and statements."""
    page = re.sub(r"^ *(`{3,}|:{3,}).*?^ *\1 *$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"`[^`]*`", "", measured.MARKED.sub("", page))
    heading = ""
    for block in re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )", page):
        if block.startswith("#"):
            heading = block.partition("\n")[0]
        yield heading, block


def without_source(page):
    """The blocks with a quantity that neither say where it is from, nor stand below words that do."""
    found, before, covered = [], "", OF_THE_PAGE in " ".join(page.split())
    sections = {h for h, block in blocks(page) if OF_THE_SECTION in " ".join(block.split())}
    for heading, block in blocks(page):
        text = " ".join(block.split())
        is_table = text.startswith("|")
        quantity = IN_A_TABLE.search(text) if is_table else QUANTITY.search(text)
        sourced = SOURCE.search(text) or (is_table and SOURCE.search(before)) or heading in sections or covered
        if quantity and not sourced:
            found.append(text)
        before = text
    return found


@pytest.mark.parametrize("page", PAGES)
def test_no_number_with_a_unit_is_without_a_source(page, request):
    found, allowed = without_source(page), UNMEASURED.get(request.node.callspec.id.removeprefix("docs/"))
    assert [text for text in found if allowed is None or allowed not in text] == []
    assert allowed is None or len(found) == 1, "nothing on this page needs to be allowed any more"


@pytest.mark.parametrize(
    "text",
    [
        "A call takes 51 µs.",
        "Forward it is 1.2 to 1.9 times as fast.",
        "- first\n- second: 20 % less",
        "Beside torch 1.33 / 1.18.",
        "| shape | ms |\n|---|---|\n| small | 3 |",
        "It took 3 s (measured on a good day, two cores).",
        "## One\n\nAll numbers here were measured on 2026-11-24, commit 81e0f35, two cores.\n\n## Two\n\nIt took 3 s.",
    ],
)
def test_a_number_without_a_source_is_found(text):
    assert len(without_source(f"# Page\n\n{text}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "There are 12 heads of 64.",
        "It took 3 s (measured on 2026-11-24, commit 81e0f35, two cores of an AMD EPYC).",
        "Below (measured on 2026-11-24, commit 81e0f35, two cores):\n\n| shape | ms |\n|---|---|\n| small | 3 |",
        "```text\nIt took 3 s.\n```",
        "<!-- measured: means -->\nIt took 3 s.\n<!-- end -->",
    ],
)
def test_any_other_is_not(text):
    assert without_source(f"# Page\n\n{text}\n") == []
