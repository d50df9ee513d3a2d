"""docs/xla-faults.md says the truth: each script prints what its table says, and without YNN what is right."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import jaxlib
import pytest

PAGE = Path(__file__).parents[1] / "docs" / "xla-faults.md"
NO_YNN = "--xla_cpu_experimental_ynn_fusion_type="
SECTION = re.compile(r"^## (?P<title>.+?)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SCRIPT = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (\S+) \| `(.*)` \|$", re.MULTILINE)


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


def test_every_fault_is_found():
    assert len(FAULTS) == PAGE.read_text().count("```python") >= 5


@pytest.mark.parametrize(("script", "table"), FAULTS)
def test_a_script_prints_what_its_table_says(script, table):
    version, got = jaxlib.__version__, printed(script)
    if version not in table or platform.machine() != "x86_64":
        verdict = "what is right" if got == table["right"] else got
        pytest.skip(f"not in the table: jaxlib {version} on {platform.machine()} prints {verdict}")
    assert got == table[version]


@pytest.mark.parametrize(("script", "table"), FAULTS)
def test_without_the_kernels_of_ynn_it_prints_what_is_right(script, table):
    if jaxlib.__version__ not in table:
        pytest.skip(f"jaxlib {jaxlib.__version__} may not know the flag, and XLA ends the process then")
    assert printed(script, NO_YNN) == table["right"]
