"""No candidate of the corpus passes ``attendax check``; and of the honest ones none is accused."""

import collections
import json
import os
import signal
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from cheats import CHEATS, Cheat
from honest import HONEST, Honest
from places import SOURCE

pytest.importorskip("rich", reason="the extra 'check' is not installed")

RUNS = 20  # of each honest candidate, with random seeds
HALF_AN_HOUR = 1800  # the command has limits of its own, and this one is not to be reached


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    report: dict
    screen: str
    left: list[int]  # processes that it left behind


def check(arguments: list[str], folder: Path) -> Ended:
    """Run ``attendax check`` in a folder, and end whatever it leaves behind.

    A shell stands between the command and this process, for candidates that end their parent's parent or its group.
    """
    mark = f"CANDIDATE={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "JAX_PLATFORMS": "cpu", "COLUMNS": "120", name: value}
    command = [sys.executable, "-m", "attendax", "check", "--json", "report.json", *arguments]
    files = {stream: (folder / f"{stream}.txt").open("wb") for stream in ("stdout", "stderr")}
    shell = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    with subprocess.Popen(
        shell, cwd=folder, env=environment, stdin=subprocess.PIPE, start_new_session=True, **files
    ) as it:
        try:
            status = it.wait(HALF_AN_HOUR)
        finally:
            left = processes_with(mark)
            for process in left:
                os.kill(process, signal.SIGKILL)
    for file in files.values():
        file.close()
    screen = (folder / "stdout.txt").read_text("utf-8", errors="replace")
    report = folder / "report.json"
    said = screen if "--json" in arguments else report.read_text("utf-8") if report.exists() else "{}"
    return Ended(status, json.loads(said), screen + (folder / "stderr.txt").read_text("utf-8", errors="replace"), left)


def processes_with(mark: str) -> list[int]:
    """The processes whose environment has a variable."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return found


in_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the processes of a candidate in /proc")


@in_proc
@pytest.mark.sample(9)
@pytest.mark.parametrize("cheat", [pytest.param(c, id=c.name) for c in CHEATS if c.quick])
def test_no_cheat_passes(cheat: Cheat, tmp_path):
    if "import torch" in cheat.text and not find_spec("torch"):
        pytest.skip("torch is not installed")
    ended = check(cheat.write(tmp_path), tmp_path)
    if "ended by a signal" in cheat.found:
        assert ended.status == 128 + signal.SIGTERM
    else:
        assert ended.status in (1, 2), ended.screen  # 2 where it can be asked nothing
        assert ended.report["ok"] is False
        assert ended.report["name"] == f"{cheat.module}:attention"
        verdicts = {case["verdict"] for case in ended.report["cases"]}
        assert any(found in verdicts or found in ended.screen.lower() for found in cheat.found), (
            verdicts,
            ended.screen,
        )
    assert ended.left == []


@in_proc
@pytest.mark.slow
@pytest.mark.parametrize("cheat", [pytest.param(c, id=c.name) for c in CHEATS if not c.quick])
def test_no_cheat_passes_a_whole_run(cheat: Cheat, tmp_path):
    test_no_cheat_passes(cheat, tmp_path)


def accused(honest: Honest, folder: Path, *arguments: str, least: int = 0) -> str:
    """What the kit holds against a candidate; nothing where it does not, and so many cases pass."""
    if honest.arrays == "torch" and not find_spec("torch"):
        pytest.skip("torch is not installed")
    ended = check([*honest.write(folder), *arguments], folder)
    assert ended.report["arrays"] == honest.arrays
    assert ended.report["counts"].get("ok", 0) >= least
    return "" if ended.status == 0 and ended.report["ok"] and not ended.left else ended.screen


NAMES = {f"{h.arrays}: {h.name}": h for h in HONEST}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [name for name, honest in NAMES.items() if honest.quick])
def test_no_honest_candidate_is_accused(name, tmp_path):
    assert accused(NAMES[name], tmp_path, "--seed", "1", "--budget", "0", least=NAMES[name].least) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, honest in NAMES.items() if honest.least and not honest.quick])
def test_an_honest_candidate_passes_so_many_cases(name, tmp_path):
    test_no_honest_candidate_is_accused(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_honest_candidate_is_accused_at_other_sizes(name, tmp_path):
    assert accused(NAMES[name], tmp_path, "--seed", "1", "--budget", "5") == ""


@pytest.mark.slow
@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("name", NAMES)
def test_no_honest_candidate_is_accused_at_random(name, run, tmp_path):
    assert accused(NAMES[name], tmp_path) == ""


def test_the_corpus_is_large_and_says_where_each_was_met():
    assert len(CHEATS) >= 40
    assert len({cheat.module for cheat in CHEATS}) == len(CHEATS)
    assert all(cheat.why.endswith(".") and cheat.met and cheat.found for cheat in CHEATS)
    for cheat in CHEATS:
        compile(cheat.text, cheat.name, "exec")
    assert len(NAMES) == len(HONEST) >= 12
    assert set(collections.Counter(honest.arrays for honest in HONEST)) == {"numpy", "jax", "torch"}
