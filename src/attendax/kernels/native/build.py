"""Compiles ``csrc/`` into one shared library: the hook of the package's build, and a command for developers.

``pip install`` runs it, by ``pyproject.toml``. It needs a C++ compiler and nothing else. Where the library cannot be
built the package is installed without it; the build says why, and so does a file in the library's place. With
``ATTENDAX_NATIVE_BUILD=0`` it is not built, with ``require`` the build fails without it.

For developers, in a clone: ``python src/attendax/kernels/native/build.py`` builds it in place. It imports nothing of
the package.
"""

import argparse
import concurrent.futures
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
VARIABLE = "ATTENDAX_NATIVE_BUILD"
BuildData = dict[str, Any]  # hatchling's: the tag of the wheel, whether it is pure, files to add
LAUNCHER = Path("..", "..", "gpu", "csrc")  # beside csrc/
REASON = "why_not.txt"  # beside the library's place, where there is none

AVX2 = ("-mavx2", "-mfma", "-mf16c")
X86 = {  # instruction set: what the compiler has to be told
    "avx512": (*AVX2, "-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mprefer-vector-width=512"),
    "avx2": AVX2,
}
ARM: dict[str, tuple[str, ...]] = {"neon": ()}
MACHINES = {"linux-x86_64": X86, "linux-aarch64": ARM, "macos-arm64": ARM}  # on others the library is not built
REALS = ("double", "float")

BASE: tuple[str, ...] = ("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden")
BASE += ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
WARNINGS = ("-Wall", "-Wextra")
KERNEL = ("-fno-exceptions", "-fno-rtti")
SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
EVERYTHING_DEFINED = "-Wl,-z,defs"
STATIC = ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL")  # a wheel meets old libraries of C++
MACOS = "11.0"


class NotBuilt(Exception):
    """The reason why there is no library."""


class Unit(NamedTuple):
    """One file, compiled one way."""

    name: str
    source: str
    isa: str  # "" for what runs on every processor
    flags: tuple[str, ...]


def machine() -> str:
    """The machine that Python runs on, as ``MACHINES`` would name it."""
    name = sysconfig.get_platform()
    return f"macos-{platform.machine()}" if name.startswith("macosx") else name


def library_name(machine: str) -> str:
    """The file name of the library."""
    return "libattendax.dylib" if machine.startswith("macos") else "libattendax.so"


def wheel_tag(machine: str) -> str:
    """The tag of a wheel with the library: it is loaded by ctypes, so any Python will do."""
    if machine.startswith("macos"):
        return f"py3-none-macosx_{_macos_version().replace('.', '_')}_arm64"
    return f"py3-none-{machine.replace('-', '_')}"


def _macos_version() -> str:
    return os.environ.get("MACOSX_DEPLOYMENT_TARGET") or MACOS


def units(machine: str) -> list[Unit]:
    """Units to compile on a machine, the longest first."""
    kernels = []
    for isa, flags in MACHINES[machine].items():
        for real in REALS:
            named = f"-DATTENDAX_ISA={isa}", f"-DATTENDAX_REAL={real}"
            kernels.append(Unit(f"kernel_{isa}_{real}", "kernel.cc", isa, (*KERNEL, *flags, *named)))
    return [*kernels, Unit("ffi", "ffi.cc", "", ()), Unit("launcher", str(LAUNCHER / "launcher.cc"), "", ())]


def find_compiler() -> list[str]:
    """The command of the compiler: that of $CXX, or the first that is there."""
    named = shlex.split(os.environ.get("CXX", ""))
    commands = [named] if named else [["c++"], ["g++"], ["clang++"]]
    for command in commands:
        path = shutil.which(command[0])
        if path is not None and not _placeholder(path):
            return command
    raise NotBuilt(f"no C++ compiler ({', '.join(command[0] for command in commands)})")


def _placeholder(path: str) -> bool:
    """Tell whether it is what macOS has where no compiler is installed, which would open a window."""
    of_system = sys.platform == "darwin" and path == f"/usr/bin/{Path(path).name}"
    return of_system and _run(["xcode-select", "-p"]).returncode != 0


def check_possible(csrc: Path) -> list[str]:
    """Say by an error why the library cannot be built, or return the command of the compiler."""
    if not (csrc / "ffi.cc").is_file() or not (csrc / "kernel.cc").is_file():
        raise NotBuilt("the sources in C++ are not there")
    if machine() not in MACHINES:
        raise NotBuilt(f"not for this machine ({machine()}); it is for {', '.join(MACHINES)}")
    return find_compiler()


def build(csrc: Path, folder: Path, out: Path, *, strict: bool, sanitize: bool = False) -> None:
    """Compile what has changed into ``folder``, one process for each core, and link it as ``out``.

    Args:
        csrc: The folder of the sources.
        folder: Where the objects lie, and from where they are taken again.
        out: The library. It appears whole or not at all.
        strict: Whether a warning is an error; so is code that runs where its instructions are missing.
        sanitize: Whether the library looks for errors of memory and of arithmetic while it runs.
    """
    compiler = check_possible(csrc)
    flags = [*BASE, *WARNINGS, *(["-Werror"] if strict else []), *(SANITIZE if sanitize else [])]
    if machine().startswith("macos"):
        flags.append(f"-mmacosx-version-min={_macos_version()}")
    folder.mkdir(parents=True, exist_ok=True)
    sources = (path for folder in (csrc, csrc / LAUNCHER) for path in folder.rglob("*") if path.is_file())
    newest = max(path.stat().st_mtime_ns for path in sources)
    version = _run([*compiler, "--version"]).stdout.partition("\n")[0]

    def compiled(unit: Unit) -> tuple[Unit, Path]:
        command = [*compiler, *flags, *unit.flags, "-I", str(csrc), "-c", str(csrc / unit.source)]
        target = folder / f"{unit.name}.o"
        _compile(command, target, newest, stamp=f"{shlex.join(command)}\n{version}\n")
        return unit, target

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        objects = list(pool.map(compiled, units(machine())))
    if strict and not sanitize:
        check_shared_code(objects)
    _link(compiler, flags, [str(path) for _, path in objects], out, sanitize=sanitize)


def _compile(command: list[str], target: Path, newest: int, *, stamp: str) -> None:
    """Compile one unit, unless its object is newer than all sources and was made by the same command."""
    made_by = target.with_suffix(".command")
    fresh = target.is_file() and target.stat().st_mtime_ns > newest
    if fresh and made_by.is_file() and made_by.read_text("utf-8") == stamp:
        return
    began = time.time_ns()
    made_by.unlink(missing_ok=True)
    made = target.with_name(f"{target.name}.{os.getpid()}")  # another build may be at work in this folder
    _checked([*command, "-o", str(made)])
    os.utime(made, ns=(began, began))  # a source that was changed meanwhile is newer
    made.replace(target)
    made_by.write_text(stamp, "utf-8")


def _link(compiler: list[str], flags: list[str], objects: list[str], out: Path, *, sanitize: bool) -> None:
    """Link the library: with its own library of C++ where the system has one to link, else with the system's."""
    ways: list[tuple[str, ...]] = [()]
    if machine().startswith("linux") and not sanitize:
        ways = [(EVERYTHING_DEFINED, *STATIC), (EVERYTHING_DEFINED,)]
    out.parent.mkdir(parents=True, exist_ok=True)
    linked = out.with_name(f"{out.name}.{os.getpid()}")  # beside it, for a rename cannot cross disks
    for k, way in enumerate(ways, 1):
        try:
            _checked([*compiler, *flags, "-shared", "-o", str(linked), *objects, *way])
            break
        except NotBuilt:
            linked.unlink(missing_ok=True)
            if k == len(ways):
                raise
    linked.replace(out)


def check_shared_code(objects: Sequence[tuple[Unit, Path]]) -> None:
    """Refuse functions that two instruction sets have under one name: the linker would keep one for all."""
    if shutil.which("nm") is None:
        return
    names: dict[str, set[str]] = {}
    for unit, path in objects:
        lines = _run(["nm", "--defined-only", str(path)]).stdout.splitlines()
        fields = (line.split() for line in lines)
        names.setdefault(unit.isa, set()).update(field[-1] for field in fields if len(field) == 3 and field[1] in "WVu")
    for one, other in itertools.combinations(names, 2):
        if shared := names[one] & names[other]:
            what = f"{one or 'ffi.cc'} and {other or 'ffi.cc'}"
            raise NotBuilt(f"{what} share {', '.join(sorted(shared)[:5])}: an instruction may run where it is missing")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _checked(command: Sequence[str]) -> None:
    done = _run(command)
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "").strip()
        raise NotBuilt(f"{command[0]} failed: {first}\n{shlex.join(command)}\n{done.stderr[-8000:]}".rstrip())
    if done.stderr.strip():
        print(done.stderr.rstrip(), file=sys.stderr)


def wanted() -> str:
    """The wish of the environment: "" (try), "0" or "require"."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "require"):
        raise ValueError(f"{VARIABLE} is '0' or 'require', or not set; not {value!r}")
    return value


def prepare(root: Path, version: str, build_data: BuildData, native: Path = HERE) -> None:
    """Give a wheel the library and its tag, or the reason: in place for an editable one, else from ``build/native``."""
    objects = root / "build" / "native"
    folder = native if version == "editable" else objects
    out, reason = folder / library_name(machine()), folder / REASON
    files = [out]
    try:
        if wanted() == "0":
            raise NotBuilt(f"{VARIABLE} was 0")
        build(native / "csrc", objects, out, strict=wanted() == "require")
        reason.unlink(missing_ok=True)
        print(f"attendax is built with its native library, {out}", file=sys.stderr)
    except (NotBuilt, OSError) as error:
        out.unlink(missing_ok=True)  # an old one must not meet new code
        if wanted() == "require":
            raise
        print(f"attendax is built without its native library: {error}", file=sys.stderr)
        files = _noted(reason, str(error))
    if version != "editable":
        build_data["force_include"].update((str(file), f"attendax/kernels/native/{file.name}") for file in files)
        if out in files:
            build_data.update(pure_python=False, tag=wheel_tag(machine()))


def _noted(path: Path, reason: str) -> list[Path]:
    """The file with the reason, or none where nothing can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{reason}\n", "utf-8")
    except OSError:
        return []
    return [path]


def get_build_hook() -> type:
    """The class that hatchling asks for: it is called in every build of a wheel."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class Hook(BuildHookInterface):
        """Builds the library before the wheel."""

        def initialize(self, version: str, build_data: BuildData) -> None:
            """Build the library, if possible."""
            prepare(Path(self.root), version, build_data)

    return Hook


def main(argv: Sequence[str] | None = None) -> int:
    """Build the library in place, with warnings as errors."""
    parser = argparse.ArgumentParser(description="Build the native library in place, with warnings as errors.")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan")
    parser.add_argument("--out", type=Path, metavar="PATH", help="the library, instead of in place")
    args = parser.parse_args(argv)
    out = args.out or HERE / library_name(machine())
    folder = HERE.parents[3] / "build" / "native" / ("sanitized" if args.sanitize else "strict")
    try:
        build(HERE / "csrc", folder, out.resolve(), strict=True, sanitize=args.sanitize)
    except NotBuilt as error:
        print(f"not built: {error}", file=sys.stderr)
        return 1
    out.with_name(REASON).unlink(missing_ok=True)
    print(out)
    if args.sanitize:
        library = f"$({shlex.join(find_compiler())} -print-file-name=libasan.so)"
        print(f"run with LD_PRELOAD={library} ASAN_OPTIONS=detect_leaks=0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
