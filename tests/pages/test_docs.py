"""A page of faults is true, of each jaxlib; and a release says its address."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jaxlib
import pytest

import attendax
from places import ROOT

PAGE = ROOT / "docs" / "xla-faults.md"
NO_YNN = "--xla_cpu_experimental_ynn_fusion_type="
SECTION = re.compile(r"^## (?P<title>.+?)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SCRIPT = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (\S+(?: with AVX-512)?) \| `(.*)` \|$", re.MULTILINE)


FAULTS = [  # each script, and its table, from a version to what it prints
    pytest.param(script, dict(ROW.findall(section["text"])), id=section["title"])
    for section in SECTION.finditer(PAGE.read_text())
    for script in SCRIPT.findall(section["text"])
]


def printed(script: str, flags: str = "") -> str:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "JAX_ENABLE_X64": "0"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def row_of(table: dict[str, str]) -> str:
    """The row for this version, the one for processors with AVX-512 where there is one and this processor has it."""
    cpu = Path("/proc/cpuinfo")
    special = jaxlib.__version__ + " with AVX-512"
    return special if special in table and cpu.exists() and "avx512f" in cpu.read_text() else jaxlib.__version__


def test_every_fault_is_found():
    assert len(FAULTS) == PAGE.read_text().count("```python") >= 5


@pytest.mark.sample(3)
@pytest.mark.parametrize(("script", "table"), FAULTS)
def test_a_script_prints_what_its_table_says(script, table):
    version, got = row_of(table), printed(script)
    if version not in table or platform.machine() != "x86_64":
        verdict = "what is right" if got == table["expected"] else got
        pytest.skip(f"not in the table: jaxlib {version} on {platform.machine()} prints {verdict}")
    assert got == table[version]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("script", "table"), FAULTS)
def test_without_the_kernels_of_ynn_it_prints_what_is_right(script, table):
    if jaxlib.__version__ not in table:
        pytest.skip(f"jaxlib {jaxlib.__version__} may not know the flag, and XLA ends the process then")
    assert printed(script, NO_YNN) == table["expected"]


LIMITS = {  # what the scripts of the other page print, in their order
    "The next kernel may run on another core": r"(cores [\d,]+: [\d.]+ ms\s*){2}",
    "Two loops do not run at once": r"two loops take [\d.]+ times as long as one",
    "The gradient of a weight transposes a copy": r"derived by JAX \d+ ms, xᵀ dout \d+ ms",
}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or os.cpu_count() == 1, reason="needs two cores of Linux")
def test_the_scripts_of_where_xla_ends_run(tmp_path):
    """They measure: what they print is not judged but where it is exact."""
    page = (PAGE.parent / "where-xla-ends.md").read_text("utf-8")
    scripts = {found["title"]: SCRIPT.findall(found["text"]) for found in SECTION.finditer(page)}
    assert scripts.pop("More limits") == []
    assert scripts.keys() == LIMITS.keys()
    for title, pattern in LIMITS.items():
        (script,) = scripts[title]
        (tmp_path / "script.py").write_text(script, encoding="utf-8")
        run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert re.fullmatch(pattern, run.stdout.strip()), (title, run.stdout, run.stderr)


def test_a_release_says_its_address_which_no_source_does(tmp_path):
    root = PAGE.parents[1]
    for name in ("pyproject.toml", "CITATION.cff", "README.md", "src/attendax/__init__.py", ".ci/address"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, tmp_path / name)
    before = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    command = [str(tmp_path / ".ci/address"), "https://host.test/somebody/attendax", "https://somebody.test/attendax/"]
    subprocess.run(command, check=True)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert project.pop("urls")["Source"] == "https://host.test/somebody/attendax"
    assert project == before["project"]
    tag = re.search(r'"(.*)"', (root / "src/attendax/__init__.py").read_text().split("__version__ =")[1])[1]
    links = re.findall(r"\]\(([^)]*)\)", (tmp_path / "README.md").read_text())
    assert links
    assert all(link.startswith("https://host.test/somebody/attendax/") for link in links)
    assert f"https://host.test/somebody/attendax/raw/v{tag}/docs/_static/two-backwards.png" in links
    assert subprocess.run(command, capture_output=True).returncode == 1  # once is enough


PARTS = ["Wrong numbers", "Breaking", "Added", "Faster"]


@pytest.mark.smoke
def test_a_release_is_said_in_four_parts_and_few_words_for_each_change():
    """In the source, the citation, the page and the changelog alike. Wrong numbers come first."""
    root = PAGE.parents[1]
    version = re.search(r'^__version__ = "(.*)"$', (root / "src/attendax/__init__.py").read_text(), re.MULTILINE)[1]
    subprocess.run([root / ".ci/version", version], check=True)
    parts = (root / "CHANGELOG.md").read_text("utf-8").split("\n## ")
    sections = {title: lines for title, *lines in map(str.splitlines, parts[1:])}
    unreleased = sections.get("Unreleased", ())
    items = re.split(r"\n(?=- )", "\n".join(unreleased).replace("\n  ", " "))[1:]
    assert [item for item in items if len(item.partition("\n")[0].split()) > 32] == []
    begun = [line.removeprefix("### ") for line in unreleased if line.startswith("### ")]
    assert begun == [part for part in PARTS if part in begun]
    (title,) = (title for title in sections if title.startswith(f"{version}, "))
    assert len(sections[title]) <= 60
    assert [line.removeprefix("### ") for line in sections[title] if line.startswith("### ")] == PARTS
    assert f"date-released: {title.partition(', ')[2]}\n" in (root / "CITATION.cff").read_text("utf-8")


@pytest.mark.smoke
def test_the_text_of_a_tag_is_what_the_changelog_says():
    """Git takes a line that begins with # for a comment."""
    root = PAGE.parents[1]
    notes = subprocess.run([root / ".ci/notes"], capture_output=True, text=True, check=True).stdout
    assert notes.startswith(f"attendax {attendax.__version__}\n")
    assert [line.removesuffix(":") for line in notes.splitlines() if line.endswith(":")][: len(PARTS)] == PARTS
    assert not re.search(r"^#", notes, re.MULTILINE)
    assert subprocess.run([root / ".ci/notes", "9.9"], capture_output=True).returncode == 1


def test_every_public_name_has_a_promise():
    told = (PAGE.parent / "stability.md").read_text("utf-8")
    results = {"__version__", "AttentionStats", "Explanation"}  # what a function returns goes with it
    assert [name for name in attendax.__all__ if name not in results and f"`{name}`" not in told] == []


def test_what_few_tests_need_is_an_extra_that_ci_installs():
    """The README's command installs little and says how long it takes; no test is skipped in CI for want of a model."""
    root = ROOT
    extras = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    bare = {extra: {re.match(r"[\w-]+", one)[0] for one in extras[extra]} for extra in ("test", "models")}
    assert bare["models"] == {"flax", "equinox", "keras", "optax", "onnx", "onnxruntime"}
    assert not bare["models"] & bare["test"]
    assert ".[test,models" in (root / ".ci" / "environment").read_text("utf-8")
    said, _, _ = (root / "README.md").read_text("utf-8").partition("<!-- tests -->")
    assert re.search(r"installation takes about .* minute\s.*\btests about", said, re.DOTALL)
