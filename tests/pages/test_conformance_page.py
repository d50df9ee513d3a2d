"""Pages show what `attendax check` and `attendax describe` print."""

import os
import re
import shlex
import subprocess
import sys

import pytest

import pages

PAGES = ("find-a-bug.md", "conformance.md", "check-a-model.md", "describe.md")
SHOWN = [
    pytest.param(page, *shown, id=shown[0])
    for page in PAGES
    for shown in re.findall(
        r"```text\n\$ attendax (.*?)\n(.*?)\n```", (pages.ROOT / "docs" / page).read_text("utf-8"), re.DOTALL
    )
]


def test_commands_are_shown():
    assert len(SHOWN) >= 4
    assert {shown.values[0] for shown in SHOWN} == set(PAGES)
    seeded = [shown.id for shown in SHOWN if shown.id.startswith("check")]
    assert all("--seed" in command for command in seeded)  # without, the numbers of a run are others


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command", "printed"), SHOWN)
def test_a_command_prints_what_is_shown(page, command, printed, tmp_path):
    pytest.importorskip("rich", reason="the extra 'check' is not installed")
    for block in pages.BLOCK.findall((pages.ROOT / "docs" / page).read_text("utf-8")):
        if file := pages.FILE.match(block):
            (tmp_path / file[1]).write_text(block)
    environment = os.environ | {"PYTHONPATH": str(pages.ROOT / "src")}
    run = [sys.executable, "-m", "attendax", *shlex.split(command)]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if command.startswith("check") else 0), done.stderr
    assert words_of(done.stdout) == words_of(printed)  # the page breaks long lines


def words_of(text):
    """The words of a text, which may tell how many calls something took, and how long."""
    return re.sub(r"\d+ calls, [\d.]+ CPU seconds", "some calls, some CPU seconds", text).split()
