"""``python -m benchmarks matrix`` and ``models``: who is judged, who is left out and why, and what is written."""

import json
import re
import subprocess
import sys

import pytest

import right_attention
from libraries import SCRIPTS, main, matrix
from stated import check

pytest.importorskip("rich", reason="the extra 'check' is not installed")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run ``python -m benchmarks``: (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())

    def run(*argv):
        status = main(argv)
        return (status, *capsys.readouterr())

    return run


class TestAllInstalled:
    @pytest.fixture
    def adapters(self, monkeypatch):
        """One that works, one without its library, one for a GPU, and one of ours that its process cannot find."""
        installed = matrix.installed

        spec = installed.ADAPTERS["attendax-spec"]
        known = {
            "attendax-spec": spec,
            "absent": spec._replace(function="no_such_package.attention:fn"),
            "on-a-gpu": spec._replace(options={"implementation": "cudnn"}),
        }
        monkeypatch.setattr(installed, "ADAPTERS", known)
        monkeypatch.setattr(installed, "has_gpu", lambda: False)
        return known

    def test_writes_the_matrix(self, run, tmp_path, adapters):
        status, out, err = run("matrix", "--only", "scale given", "--output", "out/there")
        assert status == 0
        assert "absent: the package no_such_package is not installed" in out
        assert "on-a-gpu: needs a GPU" in out
        assert err.startswith("attendax-spec: 0 faults of 0 causes, ")
        folder = tmp_path / "out" / "there"
        texts = {suffix: (folder / f"conformance.{suffix}").read_text("utf-8") for suffix in ("json", "md")}
        told = json.loads(texts["json"])
        assert [report["name"] for report in told["reports"]] == ["attendax-spec"]
        assert f"{told['date']}, seed {told['reports'][0]['seed']}. " in texts["md"]
        assert "| attendax-spec" in texts["md"]
        for text in texts.values():
            assert str(tmp_path) not in text
            assert sys.prefix not in text

    def test_every_library_is_asked_as_the_command_says(self, run, adapters, monkeypatch):
        asked = []
        monkeypatch.setattr(matrix.installed, "reported", lambda argv, *_: asked.append(argv) or "not run")
        assert run("matrix", "--quiet", "--seed", "3", "--budget", "7", "--repeat", "2")[0] == 2
        assert {"--seed=3", "--budget=7.0", "--repeat=2", "--profile=law"} <= set(asked[0])

    def test_one_of_ours_that_cannot_be_judged_is_1(self, run, adapters, monkeypatch):
        installed = matrix.installed

        adapters["attendax-gone"] = adapters["attendax-spec"]
        real = installed.in_own_process
        monkeypatch.setattr(
            installed, "in_own_process", lambda name, *args: "gone" if name == "attendax-gone" else real(name, *args)
        )
        status, out, _ = run("matrix", "--only", "scale given", "--quiet")
        assert status == 1
        assert "attendax-gone: gone" in out

    def test_a_crash_tells_where(self):
        _why = matrix.installed._why

        assert _why(-11, "x", "attendax check: 3/9 L6 leak") == "its process ended with SIGSEGV, in L6 leak: x"
        assert _why(2, "attendax check: no keras", "") == "no keras"
        assert _why(1, "Bang", "") == "its process ended with exit status 1: Bang"

    def test_paths_and_addresses_are_taken_out(self, tmp_path):
        anonymous = matrix.installed.anonymous

        words = (
            f"in /opt/python3/site-packages/flax/nn.py: <function f at 0x7f3a9c0de120> {sys.prefix}/bin; got out[0, 1]"
        )
        assert anonymous(words) == "in flax/nn.py: <function f at 0x...> .../bin; got out[0, 1]"
        assert anonymous("x = 1\nimport sys\nsys.path.insert(0, 'src')\nimport mine\n") == "x = 1\nimport mine\n"


PACKAGES = (
    *("equinox", "flash_attention_jax", "flax", "haiku", "memory_efficient_attention", "onnx", "onnxruntime"),
    *("tokamax", "torch"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_shows_its_fault_without_attendax(name):
    """It ends in an error as long as the fault is there: where a library has mended it, its cause has to go."""
    script = SCRIPTS[name]
    for package in PACKAGES:
        if re.search(rf"\b{package}\b", script):
            pytest.importorskip(package, reason=f"{package}, of the extra 'peers', is not installed")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "SyntaxError" not in done.stderr
    assert "ModuleNotFoundError" not in done.stderr


class TestAllModels:
    @pytest.fixture
    def models(self, monkeypatch):
        """One that works, one of a package that is not installed, and one that cannot be made."""
        pytest.importorskip("torch")
        all_models = matrix.of_models
        made = all_models.MODELS["torch MultiheadAttention"]
        known = {
            "torch MultiheadAttention": made,
            "absent": made._replace(package="no_such_package"),
            "transformers none": made,
        }
        monkeypatch.setattr(all_models, "MODELS", known)
        monkeypatch.setattr(all_models, "PATHS", {**all_models.PATHS, "transformers_none": "transformers none"})

    def test_writes_the_table(self, run, tmp_path, models):
        status, out, _ = run("models", "--only", "heads", "--output", "there", "--seed", "3")
        assert status == 0
        assert "| torch MultiheadAttention" in out
        text = (tmp_path / "there/models.md").read_text("utf-8")
        assert "absent: the package no\\_such\\_package is not installed" in text
        assert "has no transformers" in text
        told = json.loads((tmp_path / "there/models.json").read_text("utf-8"))
        assert [report["name"] for report in told["reports"]] == ["torch MultiheadAttention"]
        assert told["reports"][0]["seed"] == 3
        assert set(told["left_out"]) == {"absent", "transformers none"}
        for words in (str(tmp_path), sys.prefix):
            assert words not in text


def test_a_report_that_is_written_a_case_a_line_reads_back():
    """All that the tables are made from: faults, causes, and a script for each cause."""

    def ignores(query, key, value, *, is_causal=False):
        return right_attention.attend(query, key, value)

    tables = matrix.tables
    report = check(ignores, arrays="numpy", only=["plain", "causal"], level="forward", seed=0, budget=0)
    assert report.causes
    text = tables.reports_json([report], {"other": "needs a GPU"})
    told = json.loads(text)
    assert len(text.splitlines()) < len(report.cases) + 60
    assert told["left_out"] == {"other": "needs a GPU"}
    again = tables.report_from(told["reports"][0])
    assert tables.matrix_markdown([again]) == tables.matrix_markdown([report])


def test_every_model_of_the_table_is_known_by_a_name_of_python():
    models = matrix.models
    assert len(models.PATHS) == len(models.MODELS) >= 25
    assert all(path.isidentifier() for path in models.PATHS)
