"""How the native library is built, with a compiler that only writes down what it was asked; and how it is loaded."""

import ctypes
import importlib
import os
import re
import stat
import subprocess
import sysconfig
import time
import tomllib
from pathlib import Path

import jax
import jaxlib
import pytest

from attendax.kernels.native import build
from places import ROOT

library = importlib.import_module("attendax.kernels.native.library")  # of the package it is the function
COMPILER = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in *"{refused}"*) echo "error: no such thing as {refused}" >&2; exit 1;; esac
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then echo made > "$2"; fi
  shift
done
"""


class House:
    """A place to build in: its programs are the only ones."""

    def __init__(self, folder):
        self.root, self.programs, self.log = folder, folder / "bin", folder / "log"
        self.native = folder / "src/attendax/kernels/native"
        self.csrc = self.native / "csrc"
        self.csrc.mkdir(parents=True)
        self.programs.mkdir()
        self.write("ffi.cc", "")
        self.write("kernel.cc", "")
        self.write("tile.h", "")

    def write(self, name, text):
        """A source, older than anything that is made of it."""
        (self.csrc / name).write_text(text)
        os.utime(self.csrc / name, (1, 1))

    def program(self, name, text="#!/bin/sh\n"):
        path = self.programs / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def compiler(self, name="c++", refused="-nothing"):
        return self.program(name, COMPILER.format(log=self.log, refused=refused))

    def asked(self):
        """Questions to the compiler since the last time, without that for its version."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line for line in lines if line != "--version"]

    def build(self, **options):
        out = self.root / "out" / "libattendax.so"
        build.build(self.csrc, self.root / "objects", out, **{"strict": False, **options})
        assert out.read_text() == "made\n"
        assert [path.name for path in out.parent.iterdir()] == ["libattendax.so"]
        assert {path.suffix for path in (self.root / "objects").iterdir()} == {".o", ".command"}
        return self.asked()

    def prepare(self, version="standard"):
        data = {"pure_python": True, "force_include": {}}
        build.prepare(self.root, version, data, self.native)
        return data


@pytest.fixture
def house(tmp_path, monkeypatch):
    house = House(tmp_path)
    monkeypatch.setenv("PATH", str(house.programs))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(build.VARIABLE, raising=False)
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-x86_64")
    return house


PURE = {"pure_python": True, "force_include": {}}


class TestCompiler:
    def test_the_first_that_is_there(self, house):
        house.compiler("clang++")
        assert build.find_compiler() == ["clang++"]
        house.compiler("g++")
        assert build.find_compiler() == ["g++"]
        house.compiler("c++")
        assert build.find_compiler() == ["c++"]

    def test_the_one_that_is_named(self, house, monkeypatch):
        house.compiler()
        house.compiler("mine")
        monkeypatch.setenv("CXX", "mine --quick")
        assert build.find_compiler() == ["mine", "--quick"]
        monkeypatch.setenv("CXX", "absent")
        with pytest.raises(build.NotBuilt, match=r"^no C\+\+ compiler \(absent\)$"):
            build.find_compiler()

    def test_none(self, house):
        with pytest.raises(build.NotBuilt, match=r"^no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\)$"):
            build.find_compiler()


class TestUnits:
    @pytest.mark.parametrize(
        ("machine", "sets"),
        [("linux-x86_64", ["avx512", "avx2"]), ("linux-aarch64", ["neon"]), ("macos-arm64", ["neon"])],
    )
    def test_each_set_in_each_type_and_the_rest_once(self, machine, sets):
        units = build.units(machine)
        expected = [(f"-DATTENDAX_ISA={isa}", f"-DATTENDAX_REAL={real}") for isa in sets for real in build.REALS]
        assert [unit.flags[-2:] for unit in units if unit.source == "kernel.cc"] == expected
        assert [unit[2:] for unit in units if unit.source != "kernel.cc"] == [("", ())] * 2  # handlers, launcher
        assert len({unit.name for unit in units}) == len(units)

    def test_only_avx512_is_compiled_for_it(self):
        wide = {unit.isa for unit in build.units("linux-x86_64") if any("avx512" in flag for flag in unit.flags[:-2])}
        assert wide == {"avx512"}

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("platform", "tag", "name"),
        [
            ("linux-x86_64", "py3-none-linux_x86_64", "libattendax.so"),
            ("linux-aarch64", "py3-none-linux_aarch64", "libattendax.so"),
            ("macosx-10.13-universal2", "py3-none-macosx_11_0_arm64", "libattendax.dylib"),
        ],
    )
    def test_the_names_of_a_machine(self, platform, tag, name, monkeypatch):
        monkeypatch.delenv("MACOSX_DEPLOYMENT_TARGET", raising=False)
        monkeypatch.setattr(sysconfig, "get_platform", lambda: platform)
        monkeypatch.setattr(build.platform, "machine", lambda: "arm64")
        assert build.machine() in build.MACHINES
        assert build.wheel_tag(build.machine()) == tag
        assert build.library_name(build.machine()) == name


class TestBuild:
    @pytest.mark.smoke
    def test_what_has_not_changed_is_not_compiled_again(self, house):
        house.compiler()
        *compiled, linked = house.build()
        assert len(compiled) == 6
        assert not any("-Werror" in line for line in compiled)
        assert "-shared" in linked
        assert len(house.build()) == 1
        (house.csrc / "tile.h").touch()
        os.utime(house.csrc / "tile.h", (2e9, 2e9))
        assert len(house.build()) == 7
        house.write("tile.h", "")
        assert len(house.build()) == 1
        *compiled, _ = house.build(strict=True)
        assert len(compiled) == 6
        assert all("-Werror" in line for line in compiled)

    def test_a_source_that_changes_while_it_is_compiled_is_compiled_again(self, house):
        """Its object is as old as the beginning."""
        house.compiler()
        before = time.time_ns()
        house.build()
        made = [path.stat().st_mtime_ns for path in (house.root / "objects").glob("*.o")]
        assert all(before <= at < (house.root / "out" / "libattendax.so").stat().st_mtime_ns for at in made)
        os.utime(house.csrc / "tile.h", ns=(max(made), max(made)))
        assert len(house.build()) == 7

    def test_another_compiler_compiles_anew(self, house):
        house.compiler("g++")
        house.build()
        house.compiler("c++")
        assert len(house.build()) == 7

    @pytest.mark.smoke
    def test_without_a_library_of_c_plus_plus_to_link(self, house):
        house.compiler(refused="-static-libstdc++")
        *_, first, second = house.build()
        assert "-static-libstdc++" in first
        assert "-static" not in second

    def test_sanitized(self, house):
        house.compiler(refused="-static-libstdc++")
        assert all("-fsanitize=address,undefined" in line for line in house.build(sanitize=True))

    @pytest.mark.smoke
    def test_code_that_two_instruction_sets_share(self, house):
        """The linker keeps one of them; it may be the one that the processor does not know."""
        house.program("nm", '#!/bin/sh\nwhile read line; do echo "$line"; done < "$2"\n')
        objects = [(unit, house.root / f"{unit.name}.o") for unit in build.units("linux-x86_64")]
        for unit, path in objects:
            path.write_text(f"0 T shared\n0 W of_{unit.isa}\n")
        build.check_shared_code(objects)
        for isa, who in [("avx2", "avx512 and avx2"), ("", "avx512 and ffi.cc")]:
            (path,) = [path for unit, path in objects if unit.isa == isa][-1:]
            before = path.read_text()
            path.write_text("0 W of_avx512\n")
            with pytest.raises(build.NotBuilt, match=f"{who} share of_avx512"):
                build.check_shared_code(objects)
            path.write_text(before)


class TestHook:
    @pytest.mark.smoke
    def test_the_wheel_has_the_library(self, house, capsys):
        house.compiler()
        out = house.root / "build/native/libattendax.so"
        included = {str(out): "attendax/kernels/native/libattendax.so"}
        assert house.prepare() == {"pure_python": False, "tag": "py3-none-linux_x86_64", "force_include": included}
        assert out.read_text() == "made\n"
        assert not (house.native / out.name).exists()
        assert not (out.parent / build.REASON).exists()
        assert capsys.readouterr().err == f"attendax is built with its native library, {out}\n"

    def test_an_editable_one_has_it_in_place(self, house):
        house.compiler()
        assert house.prepare("editable") == PURE
        assert (house.native / "libattendax.so").read_text() == "made\n"

    def test_a_reason_that_does_not_hold_any_more(self, house):
        for version, folder in [("editable", house.native), ("standard", house.root / "build/native")]:
            house.prepare(version)
            assert (folder / build.REASON).exists()
            house.compiler()
            house.prepare(version)
            assert not (folder / build.REASON).exists()
            (house.programs / "c++").unlink()

    WHY = {
        "no compiler": (lambda house, patch: None, "no C++ compiler (c++, g++, clang++)"),
        "one that fails": (
            lambda house, patch: house.compiler(refused="-mavx2"),
            "c++ failed: error: no such thing as -mavx2",
        ),
        "one that does not start": (lambda house, patch: house.program("c++", "#!/absent\n"), "No such file"),
        "no sources": (lambda house, patch: (house.csrc / "ffi.cc").unlink(), "the sources in C++ are not there"),
        "another machine": (
            lambda house, patch: patch.setattr(sysconfig, "get_platform", lambda: "linux-riscv64"),
            "not for this machine (linux-riscv64); it is for linux-x86_64, linux-aarch64, macos-arm64",
        ),
    }

    @pytest.mark.smoke
    @pytest.mark.parametrize("why", WHY)
    @pytest.mark.parametrize("version", ["standard", "editable"])
    def test_without_it_the_wheel_is_pure_and_says_why(self, why, version, house, monkeypatch, capsys):
        arrange, reason = self.WHY[why]
        arrange(house, monkeypatch)
        old = [house.native / "libattendax.so", house.root / "build/native/libattendax.so"][version == "standard"]
        old.parent.mkdir(parents=True, exist_ok=True)
        old.touch()
        noted = old.with_name(build.REASON)
        included = {} if version == "editable" else {str(noted): "attendax/kernels/native/why_not.txt"}
        assert house.prepare(version) == {"pure_python": True, "force_include": included}
        assert not old.exists()
        said = capsys.readouterr().err
        assert said.startswith("attendax is built without its native library: ")
        assert reason in noted.read_text().splitlines()[0]
        assert noted.read_text().strip() in said
        monkeypatch.setenv(build.VARIABLE, "require")
        with pytest.raises((build.NotBuilt, OSError)) as error:
            house.prepare(version)
        assert reason in str(error.value)

    @pytest.mark.smoke
    def test_not_asked_for(self, house, monkeypatch):
        house.compiler()
        monkeypatch.setenv(build.VARIABLE, "0")
        assert house.prepare()["pure_python"]
        assert (house.root / "build/native/why_not.txt").read_text() == "ATTENDAX_NATIVE_BUILD was 0\n"
        assert house.asked() == []

    @pytest.mark.smoke
    def test_a_folder_that_cannot_be_written_builds_no_library(self, house, capsys):
        (house.root / "build/native" / build.REASON).mkdir(parents=True)
        assert house.prepare() == PURE
        assert "without its native library: no C++ compiler" in capsys.readouterr().err

    @pytest.mark.smoke
    def test_a_word_that_means_nothing(self, monkeypatch, house):
        monkeypatch.setenv(build.VARIABLE, "yes")
        with pytest.raises(ValueError, match="'0' or 'require', or not set; not 'yes'"):
            house.prepare()

    def test_hatchling_calls_it(self):
        path = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["path"]
        assert ROOT / path == Path(build.__file__)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


CSRC = Path(build.__file__).parent / "csrc"
LATER = {  # names of jaxlib 0.12 for what lies in the same place
    "XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension",
    "XLA_FFI_Error_GetMessage": "XLA_FFI_Error_GetDetails",
    "XLA_FFI_ExecutionContext_Get": "XLA_FFI_InvokeContext_Get",
}


def comparisons(header):
    """C++ that does not compile where our declarations differ from XLA's. A newer XLA adds behind what is ours."""
    yield "constexpr int kMajor = XLA_FFI_API_MAJOR, kMinor = XLA_FFI_API_MINOR;"
    yield "#undef XLA_FFI_API_MAJOR\n#undef XLA_FFI_API_MINOR"
    yield f"namespace ours {{\n{header}\n}}"
    yield "static_assert(ours::XLA_FFI_API_MAJOR == kMajor && ours::XLA_FFI_API_MINOR <= kMinor);"
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", header, re.M | re.S):
        for field in re.findall(r"(\w+)\)?(?:\([\w *]*\))?(?=[,;])", body):
            yield f"static_assert(offsetof(ours::{name}, {field}) == offsetof(::{name}, {field}));"
            yield f"static_assert(sizeof(ours::{name}::{field}) == sizeof(::{name}::{field}));"
    for name in re.findall(r"^XLA_FFI_SIZE\((\w+)", header, re.M):
        yield f"static_assert(ours::{name}_STRUCT_SIZE <= ::{name}_STRUCT_SIZE);"
    for name in re.findall(r"(XLA_FFI_\w+_\w+) = \d+[,} ]", header):
        yield f"static_assert(int(ours::{name}) == int(::{name}));"


class TestInterface:
    @pytest.fixture
    def accepts(self, tmp_path):
        """Whether a header agrees with that of jaxlib."""
        try:
            compiler = build.find_compiler()
        except build.NotBuilt as error:
            pytest.skip(str(error))

        def accepts(header):
            folder = Path(jaxlib.__file__).parent / "include"
            installed = (folder / "xla/ffi/api/c_api.h").read_text("utf-8")
            for name, later in LATER.items():
                header = header if name in installed else header.replace(name, later)
            text = "\n".join(['#include "xla/ffi/api/c_api.h"', *comparisons(header)])
            (tmp_path / "check.cc").write_text(text.replace("#pragma once", ""))
            command = [*compiler, "-std=c++20", "-fsyntax-only", "-isystem", folder, tmp_path / "check.cc"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert not done.returncode or "static assertion failed" in done.stderr, done.stderr
            return not done.returncode

        return accepts

    HEADER = (CSRC / "xla_ffi.h").read_text("utf-8")

    def test_the_ffi_header_is_that_of_the_installed_jaxlib(self, accepts):
        assert len(list(comparisons(self.HEADER))) > 150
        assert accepts(self.HEADER)

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("_BF16 = 16", "_BF16 = 15"),
            ("API_MINOR = 3", "API_MINOR = 99"),
            ("int64_t rank;\n  int64_t* dims;", "int64_t* dims;\n  int64_t rank;"),
            ("  void* XLA_FFI_Error_GetMessage;\n", ""),
            ("int32_t* types;", "int32_t types;"),
            ("uint32_t traits;", "uint64_t traits;"),
        ],
    )
    def test_a_mistake_is_seen(self, old, new, accepts):
        assert old in self.HEADER
        assert not accepts(self.HEADER.replace(old, new))

    def test_the_versions_of_jaxlib_are_those_that_the_project_declares(self):
        oldest, too_new = (".".join(map(str, version)) for version in (library.OLDEST, library.TOO_NEW))
        needed = project()["project"]["dependencies"]
        assert [f"{name}>={oldest},<{too_new}" for name in ("jax", "jaxlib")] == needed[:2]
        assert f"that of jaxlib {oldest}" in self.HEADER


class TestLoader:
    @pytest.fixture(autouse=True)
    def place(self, tmp_path, monkeypatch):
        """Where the library would lie; nothing is registered with XLA."""
        monkeypatch.setattr(library, "FOLDER", tmp_path)
        monkeypatch.delenv("ATTENDAX_NATIVE", raising=False)
        monkeypatch.delenv("ATTENDAX_ISA", raising=False)
        self.registered = []
        register = lambda target, function, platform: self.registered.append((target, platform))  # noqa: E731
        monkeypatch.setattr(jax.ffi, "register_ffi_target", register)
        monkeypatch.setattr(jax.ffi, "pycapsule", lambda function: function)
        return tmp_path

    @staticmethod
    def loaded(monkeypatch, isa=b"neon", version=library.VERSION):
        """The file that loads is a library with these answers; without a version where it is None."""

        class Loaded:
            def __init__(self, path):
                def attendax_isa():
                    return isa

                self.attendax_isa = attendax_isa
                for target in library.TARGETS:
                    setattr(self, target, None)
                if version is not None:
                    self.attendax_version = lambda: version

        monkeypatch.setattr(ctypes, "CDLL", Loaded)
        return library.library.__wrapped__()

    def test_it_loads(self, place, monkeypatch):
        (place / library.NAME).touch()
        assert self.loaded(monkeypatch) == ("neon", "")
        assert self.registered == [(name, "cpu") for name in library.TARGETS]

    @pytest.mark.smoke
    def test_none(self, place, monkeypatch):
        assert self.loaded(monkeypatch) == ("", "the library was not built")
        (place / build.REASON).touch()
        assert self.loaded(monkeypatch) == ("", "the library was not built")
        (place / build.REASON).write_text("no C++ compiler (c++)\nand more\n")
        assert library.REASON == build.REASON
        assert self.loaded(monkeypatch).why_not == "attendax was built without the library: no C++ compiler (c++)"
        monkeypatch.setenv("ATTENDAX_NATIVE", "0")
        assert self.loaded(monkeypatch).why_not == "turned off by ATTENDAX_NATIVE=0"

    @pytest.mark.smoke
    def test_it_does_not_load(self, place):
        (place / library.NAME).write_text("no library")
        assert library.library.__wrapped__().why_not.startswith("the library does not load: ")

    @pytest.mark.smoke
    @pytest.mark.parametrize("version", [None, library.VERSION - 1, library.VERSION + 1])
    def test_of_another_version(self, version, place, monkeypatch):
        (place / library.NAME).touch()
        why = "the library is of another version than attendax: build it anew"
        assert self.loaded(monkeypatch, version=version) == ("", why)
        assert self.registered == []

    def test_the_number_of_the_sources(self):
        assert f"attendax_version() {{ return {library.VERSION}; }}" in (CSRC / "ffi.cc").read_text("utf-8")

    @pytest.mark.smoke
    @pytest.mark.parametrize("package", [jax, jaxlib])
    @pytest.mark.parametrize(
        ("version", "known"),
        [
            ("0.10.1", False), ("0.10.2", True), ("0.10.2.dev1+abc", True), ("0.11.0", True), ("0.12.99", True),
            ("0.13.0", False), ("0.13.0.dev1", False), ("0.13", False), ("1.0.0", False),
        ],
    )  # fmt: skip
    def test_versions_of_jax(self, package, version, known, place, monkeypatch):
        """Where XLA refuses a handler the CPU is lost: so none is registered where that is not known."""
        (place / library.NAME).touch()
        monkeypatch.setattr(package, "__version__", version)
        isa, why = self.loaded(monkeypatch)
        assert bool(isa) == known == (not why) == bool(self.registered)
        if not known:
            assert why == f"it is for jax 0.10.2 up to below 0.13; this is {package.__name__} {version}"

    @pytest.mark.smoke
    def test_an_instruction_set_that_is_not_there(self, place, monkeypatch):
        (place / library.NAME).touch()
        assert "none of the instruction sets" in self.loaded(monkeypatch, isa=b"").why_not
        monkeypatch.setenv("ATTENDAX_ISA", "sse9")
        assert self.loaded(monkeypatch, isa=b"").why_not.startswith("ATTENDAX_ISA=sse9: ")
        assert self.registered == []
