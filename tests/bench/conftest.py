"""The modules of ``benchmarks`` are found here, and nothing measures the machine."""

import sys

import pytest

from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch):
    """Rates of the machine are given, turns are short, and a command runs in this process."""
    import harness
    import machine
    from command_line import BLAS_REST

    monkeypatch.setattr(machine, "_matmul_gflops", lambda *_: 100.0)
    monkeypatch.setattr(machine, "_copy_gbytes", lambda: 10.0)
    monkeypatch.setattr(harness, "TURN_S", 1e-4)
    monkeypatch.setenv(*BLAS_REST)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def run(capsys):
    """Run ``python -m benchmarks bench``: (exit status, standard output, standard error)."""
    from command_line import main

    return lambda *argv: (main(["bench", *argv]), *capsys.readouterr())


@pytest.fixture
def without_attendax(tmp_path):
    """A folder whose attendax ends the process that imports it."""
    (tmp_path / "attendax").mkdir()
    (tmp_path / "attendax" / "__init__.py").write_text("raise SystemExit(7)\n", encoding="utf-8")
    return tmp_path
