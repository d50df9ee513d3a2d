"""The proofs themselves, where Coq is installed: they compile, and a mistake in a formula stops them."""

import re
import shutil
import subprocess

import pytest
from mistakes_in_proofs import MISTAKES

from places import ROOT

PROOFS = ROOT / "docs" / "proofs"
ERROR = re.compile(r'^File "\./(\w+)\.v", line (\d+)', re.MULTILINE)
needs_coq = pytest.mark.skipif(
    shutil.which("coqc") is None, reason="needs Coq: apt-get install coq libcoq-coquelicot, as .ci/proofs does"
)


def make(folder, *goals):
    command = ["make", "--silent", "-C", folder, f"BUILD={folder / 'build'}", *goals]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture
def copy(tmp_path):
    for path in PROOFS.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    return tmp_path


@needs_coq
@pytest.mark.slow
def test_the_proofs_compile_and_the_tests_run_what_was_proved(copy):
    run = make(copy, "check", "extract")
    assert run.returncode == 0, run.stdout + run.stderr
    assert (copy / "build/definitions.json").read_text() == (PROOFS / "definitions.json").read_text()


def test_every_mistake_can_be_planted():
    assert len(MISTAKES) > 30
    for mistake in MISTAKES:
        assert (PROOFS / f"{mistake.file}.v").read_text().count(mistake.old) == 1, mistake.what


@needs_coq
@pytest.mark.slow
def test_a_proof_with_a_gap_stops_the_build(copy):
    with (copy / "Tiles.v").open("a") as file:
        file.write("Lemma gap' : 0 = 1. Admitted.\nTheorem from_a_gap : 0 = 1. Proof. exact gap'. Qed.\n")
    run = make(copy, "check")
    assert run.returncode != 0
    assert re.search(r"assumed, and not an axiom of the library: .*gap'", run.stderr), run.stderr


@needs_coq
@pytest.mark.sample(2)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_mistake_in_a_formula_stops_the_build(copy, mistake):
    path = copy / f"{mistake.file}.v"
    path.write_text(path.read_text().replace(mistake.old, mistake.new))
    run = make(copy, "check")
    assert run.returncode != 0
    assert "Syntax error" not in run.stderr
    file, line = ERROR.search(run.stderr).groups()
    before = "\n".join((copy / f"{file}.v").read_text().splitlines()[: int(line)]).removesuffix("\nQed.")
    assert before.rfind("Proof.") > max(before.rfind(word) for word in ("\nDefinition", "\nQed.", "\nInductive"))


def test_every_theorem_is_listed_with_what_it_assumes():
    theorems = {
        f"{path.stem}.{name}"
        for path in PROOFS.glob("*.v")
        for name in re.findall(r"^Theorem (\w+)", path.read_text(), re.MULTILINE)
    }
    lines = (PROOFS / "assumptions.txt").read_text().splitlines()
    listed = dict(line.split(": ") for line in lines)
    assert listed.keys() == theorems
    without = {name for name, axioms in listed.items() if axioms == "no axiom"}
    assert without == {name for name in theorems if name.startswith("Attention.")}
    used = {axiom for name in theorems - without for axiom in listed[name].split()}
    assert used == {"sig_not_dec", "sig_forall_dec", "functional_extensionality_dep", "classic"}
    gap = re.compile(r"\b(Admitted|Axiom|Parameter|admit|Unset Guard Checking|bypass_check)\b")
    assert not any(gap.search(path.read_text()) for path in PROOFS.glob("*.v"))


def test_the_page_names_every_theorem_and_no_other():
    cells = re.findall(r"^\| (`[^|]*`) \|", (PROOFS.parent / "what-is-proved.md").read_text(), re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    theorems = {line.split(":")[0].split(".")[1] for line in (PROOFS / "assumptions.txt").read_text().splitlines()}
    assert named == theorems


def test_every_theorem_that_the_documentation_cites_is_one():
    theorems = {line.split(":")[0].split(".")[1] for line in (PROOFS / "assumptions.txt").read_text().splitlines()}
    cited = set()
    for path in [PROOFS.parents[1] / "README.md", *PROOFS.parent.rglob("*.md")]:
        for sentence in re.split(r"(?<=[.:])\s+(?=[(A-Z#`|])|\n\n", path.read_text()):
            if re.search(r"\b[Tt]heorems?\b", sentence):
                names = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)`", sentence))
                assert names <= theorems, (path.name, names - theorems)
                cited |= names
    assert len(cited) > 25
