"""Mistakes planted in the C++ of the native path, one at a time: each must be caught by the tests named beside it.

A copy of ``csrc`` with the mistake is compiled for the instruction set of this machine, and a process loads it in the
place of the library and runs the tests. A file that did not change is compiled once.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

import native_child
from attendax.kernels import native
from attendax.kernels.native import build
from mistakes_in_native import MISTAKES, NUMBERS
from native_calls import needs_library
from places import TESTS

CSRC = Path(build.__file__).parent / "csrc"
ALL_SETS = "X(avx512) X(avx2)"
CATCHERS = sorted({catcher for mistake in MISTAKES for catcher in mistake.catchers})
WAITS = 120  # seconds, for tests that take less than ten: then it is a deadlock


class Workshop:
    """A folder with the sources, for one instruction set, and what has been compiled of them."""

    def __init__(self, folder):
        self.csrc, self.children = folder / "csrc", native_child.start()
        shutil.copytree(CSRC, self.csrc)
        self.isa = native.library().isa
        ffi = self.csrc / "ffi.cc"
        ffi.write_text(ffi.read_text("utf-8").replace(ALL_SETS, f"X({self.isa})"), "utf-8")
        self.units = [unit for unit in build.units(build.machine()) if unit.isa in ("", self.isa)]
        self.objects = {unit.name: self.compiled(unit, self.csrc) for unit in self.units}

    def compiled(self, unit, csrc):
        """The object of one unit, in the folder of its sources."""
        target = csrc.parent / f"{unit.name}.o"
        quick = ["-O1" if flag == "-O3" else flag for flag in build.BASE]
        folder = CSRC if unit.source.startswith("..") else csrc  # the launcher of GPU kernels stays where it is
        sources = ["-I", str(csrc), "-c", str(folder / unit.source)]
        command = [*build.find_compiler(), *quick, *unit.flags, *sources, "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"does not compile:\n{done.stderr[-3000:]}"
        return target

    def library(self, csrc, anew=()):
        """The library of other sources, of which some units are compiled anew."""
        objects = dict(self.objects)
        for unit in self.units:
            if unit.name in anew:
                objects[unit.name] = self.compiled(unit, csrc)
        target = csrc.parent / "mistaken.so"
        command = [*build.find_compiler(), "-shared", "-o", str(target), *map(str, objects.values())]
        subprocess.run(command, check=True)
        return target

    def judged(self, library, catchers):
        """How the tests end with a library, and what they said."""
        return native_child.judged(self.children, library, TESTS / "engine" / "native", catchers, WAITS)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("workshop"))


def concerned(mistake):
    """The units to be compiled anew: those of the file, and of the types that its tests compute in."""
    if mistake.file == "ffi.cc":
        return ("ffi",)
    in_double = {catcher.startswith(NUMBERS) for catcher in mistake.catchers}
    kernels = [f"kernel_{native.library().isa}_{real}" for of, real in ((True, "double"), (False, "float"))
               if of in in_double]  # fmt: skip
    return (*kernels, "ffi") if mistake.file == "problem.h" else tuple(kernels)


def planted(source, mistake):
    """The text of a file with the mistake."""
    count = source.count(mistake.right)
    assert count == 1, f"{mistake.name}: {mistake.right!r} occurs {count} times in {mistake.file}"
    return source.replace(mistake.right, mistake.wrong)


@needs_library
def test_each_text_is_there():
    """Quick: the table follows the source."""
    for mistake in MISTAKES:
        planted((CSRC / mistake.file).read_text("utf-8"), mistake)
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)


@pytest.mark.slow
@needs_library
def test_the_source_as_it_is_passes(workshop):
    ends, told = workshop.judged(workshop.library(workshop.csrc), CATCHERS)
    assert ends == "passed", told


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_caught(workshop, tmp_path, mistake):
    csrc = tmp_path / "csrc"
    shutil.copytree(workshop.csrc, csrc)
    source = csrc / mistake.file
    source.write_text(planted(source.read_text("utf-8"), mistake), "utf-8")
    ends, told = workshop.judged(workshop.library(csrc, concerned(mistake)), mistake.catchers)
    if ends == "waited for ever":  # or is the machine too busy to tell?
        assert workshop.judged(workshop.library(workshop.csrc), mistake.catchers)[0] == "passed"
    crashed = ends.startswith("ended by -") or ends == "waited for ever"
    assert ends == "failed" or crashed, f"{mistake.name}: {ends}\n{told}"
