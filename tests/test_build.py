"""How the native library is built, with a compiler that only writes down what it was asked."""

import os
import stat
import sysconfig
import tomllib
from pathlib import Path

import pytest

from attendax.kernels.native import build

ROOT = Path(__file__).parents[1]
COMPILER = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in *"{refused}"*) echo "no such thing as {refused}" >&2; exit 1;; esac
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
        self.write("ffi.cc", '#include "xla/ffi/api/c_api.h"')
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
        """What the compiler was asked since the last time, without its version."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line for line in lines if line != "--version"]

    def build(self, **options):
        out = self.root / "out" / "libattendax.so"
        build.build(self.csrc, self.root / "objects", out, **{"strict": False, **options})
        assert out.read_text() == "made\n"
        assert [path.name for path in out.parent.iterdir()] == ["libattendax.so"]
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
        assert [unit[2:] for unit in units if unit.source != "kernel.cc"] == [("", ())]
        assert len({unit.name for unit in units}) == len(units)

    def test_only_avx512_is_compiled_for_it(self):
        wide = {unit.isa for unit in build.units("linux-x86_64") if any("avx512" in flag for flag in unit.flags[:-2])}
        assert wide == {"avx512"}

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
    def test_what_has_not_changed_is_not_compiled_again(self, house):
        house.compiler()
        *compiled, linked = house.build()
        assert len(compiled) == 5
        assert all(line.count("jaxlib") == 1 and "-Werror" not in line for line in compiled)
        assert "-shared" in linked
        assert len(house.build()) == 1
        (house.csrc / "tile.h").touch()
        os.utime(house.csrc / "tile.h", (2e9, 2e9))
        assert len(house.build()) == 6
        house.write("tile.h", "")
        assert len(house.build()) == 1
        *compiled, _ = house.build(strict=True)
        assert len(compiled) == 5
        assert all("-Werror" in line for line in compiled)

    def test_another_compiler_compiles_anew(self, house):
        house.compiler("g++")
        house.build()
        house.compiler("c++")
        assert len(house.build()) == 6

    def test_without_a_library_of_c_plus_plus_to_link(self, house):
        house.compiler(refused="-static-libstdc++")
        *_, first, second = house.build()
        assert "-static-libstdc++" in first
        assert "-static" not in second

    def test_sanitized(self, house):
        house.compiler(refused="-static-libstdc++")
        assert all("-fsanitize=address,undefined" in line for line in house.build(sanitize=True))

    def test_sources_that_bring_the_header(self, house):
        house.write("ffi.cc", '#include "abi.h"')
        house.compiler()
        assert build.requirements(house.native) == []
        assert not any("jaxlib" in line for line in house.build())

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
    def test_the_wheel_has_the_library(self, house, capsys):
        house.compiler()
        out = house.root / "build/native/libattendax.so"
        included = {str(out): "attendax/kernels/native/libattendax.so"}
        assert house.prepare() == {"pure_python": False, "tag": "py3-none-linux_x86_64", "force_include": included}
        assert out.read_text() == "made\n"
        assert not (house.native / out.name).exists()
        assert capsys.readouterr().err == f"attendax is built with its native library, {out}\n"

    def test_an_editable_one_has_it_in_place(self, house):
        house.compiler()
        assert house.prepare("editable") == PURE
        assert (house.native / "libattendax.so").read_text() == "made\n"

    WHY = {
        "no compiler": (lambda house, patch: None, "no C++ compiler (c++, g++, clang++)"),
        "one that fails": (lambda house, patch: house.compiler(refused="-mavx2"), "failed:\nno such thing as -mavx2"),
        "one that does not start": (lambda house, patch: house.program("c++", "#!/absent\n"), "No such file"),
        "no sources": (lambda house, patch: (house.csrc / "ffi.cc").unlink(), "the sources in C++ are not there"),
        "another machine": (
            lambda house, patch: patch.setattr(sysconfig, "get_platform", lambda: "linux-riscv64"),
            "not for this machine (linux-riscv64); it is for linux-x86_64, linux-aarch64, macos-arm64",
        ),
        "no jaxlib": (
            lambda house, patch: (
                house.compiler(),
                patch.setattr(build.importlib.util, "find_spec", lambda name: None),
            ),
            "jaxlib, which brings the headers of XLA, is not installed",
        ),
    }

    @pytest.mark.parametrize("why", WHY)
    @pytest.mark.parametrize("version", ["standard", "editable"])
    def test_without_it_the_wheel_is_pure_and_says_why(self, why, version, house, monkeypatch, capsys):
        arrange, reason = self.WHY[why]
        arrange(house, monkeypatch)
        old = [house.native / "libattendax.so", house.root / "build/native/libattendax.so"][version == "standard"]
        old.parent.mkdir(parents=True, exist_ok=True)
        old.touch()
        assert house.prepare(version) == PURE
        assert not old.exists()
        said = capsys.readouterr().err
        assert said.startswith("attendax is built without its native library: ")
        assert reason in said
        monkeypatch.setenv(build.VARIABLE, "require")
        with pytest.raises((build.NotBuilt, OSError)) as error:
            house.prepare(version)
        assert reason in str(error.value)

    def test_not_asked_for(self, house, monkeypatch):
        house.compiler()
        monkeypatch.setenv(build.VARIABLE, "0")
        assert house.prepare() == PURE
        assert build.requirements(house.native) == []
        assert house.asked() == []

    def test_a_word_that_means_nothing(self, monkeypatch, house):
        monkeypatch.setenv(build.VARIABLE, "yes")
        with pytest.raises(ValueError, match="'0' or 'require', or not set; not 'yes'"):
            house.prepare()

    def test_jaxlib_is_required_where_there_is_something_to_compile(self, house):
        assert build.requirements(house.native) == []
        house.compiler()
        (oldest,) = [x for x in project()["project"]["dependencies"] if x.startswith("jaxlib")]
        assert build.requirements(house.native) == [build.JAXLIB]
        assert build.JAXLIB.startswith(oldest.replace(">=", "=="))

    def test_hatchling_calls_it(self):
        path = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["path"]
        assert ROOT / path == Path(build.__file__)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
