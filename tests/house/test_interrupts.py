"""Ctrl-C and SIGTERM end the command with a shell's status and without a word, whatever it is doing."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import small_bert
from attendax import exits

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be sent to another process there")


@pytest.fixture(autouse=True)
def interrupts_are_heard():
    """A program that a shell runs in the background ignores SIGINT, and so does whatever that starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# Loaded by the interpreter before anything else: interrupts it at the first import of a module.
SITE = """
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == os.environ.get("INTERRUPT_AT"):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""


@pytest.fixture
def start(tmp_path):
    """Start the command with pipes; a model with more layers than usual, so that compiling it takes a while."""
    pytest.importorskip("safetensors", reason="the extra 'demo' is not installed")
    pytest.importorskip("tokenizers", reason="the extra 'demo' is not installed")
    config = small_bert.CONFIG | {"num_hidden_layers": 4}
    weights = small_bert.write_checkpoint(tmp_path / "model", config=config)
    command = [sys.executable, "-m", "attendax", "embed", "--json", "--weights", str(weights)]
    running = []

    def run():
        process = subprocess.Popen(command, **dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE))
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def write(process, lines):
    process.stdin.write(b"a man\n" * lines)
    process.stdin.flush()


def interrupted(process, number=signal.SIGINT):
    """Send a signal; the status, and what is still written."""
    process.send_signal(number)
    status = process.wait(timeout=300)
    return status, process.stdout.read(), process.stderr.read()


@pytest.fixture
def heard():
    """A program that they start hears the end of the terminal, also where the tests ignore it, as by nohup."""
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, ours)


class TestEmbed:
    def test_waiting_for_the_next_line(self, start):
        process = start()
        write(process, 1)
        assert json.loads(process.stdout.readline())["text"] == "a man"
        time.sleep(0.2)  # back in the read
        assert interrupted(process) == (130, b"", b"")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_half_a_file_goes(self, heard, tmp_path, number):
        pytest.importorskip("safetensors", reason="the extra 'demo' is not installed")
        pytest.importorskip("tokenizers", reason="the extra 'demo' is not installed")
        weights, folder = small_bert.write_checkpoint(tmp_path / "model"), tmp_path / "out"
        folder.mkdir()
        (folder / "a.npy").write_text("before")
        command = [sys.executable, "-m", "attendax", "embed", "--weights", str(weights)]
        command += ["--output", str(folder / "a.npy")]
        pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
        with subprocess.Popen(command, **pipes) as process:
            while len(list(folder.iterdir())) == 1:
                assert process.poll() is None
                time.sleep(0.05)
            assert interrupted(process, number) == (128 + number, b"", b"")
        assert [path.read_text() for path in folder.iterdir()] == ["before"]

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("delay", [0.2, 0.6])
    def test_while_xla_compiles(self, start, delay):
        """Four lines more are a batch of another shape; the threads that compile it outlive an exception."""
        process = start()
        write(process, 1)
        process.stdout.readline()
        write(process, 4)
        time.sleep(delay)
        status, _, errors = interrupted(process)
        assert (status, errors) == (130, b"")


class TestCheck:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_cleans_up_first(self, tmp_path, number):
        """A command that has folders and processes to see to gets an exception, and says nothing either."""
        function = f"import os\ndef ends(query, key, value): os.kill(os.getpid(), {int(number)})"
        (tmp_path / "mine.py").write_text(function, encoding="utf-8")
        command = [
            sys.executable,
            *["-m", "attendax", "check", "mine:ends", "--quiet", "--in-process", "--json", "a.json"],
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300)
        assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"", b"")
        assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}


class TestStart:
    @pytest.mark.parametrize(
        "module",
        ["attendax.cli", "argparse", "numpy", "attendax.encoders", "jax", "jaxlib", "jax.numpy", "tokenizers"],
    )
    def test_during_the_imports(self, tmp_path, module):
        if module == "tokenizers":
            pytest.importorskip("tokenizers", reason="the extra 'demo' is not installed")
        (tmp_path / "sitecustomize.py").write_text(SITE, encoding="utf-8")
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        weights = small_bert.write_checkpoint(tmp_path / "model") if module == "tokenizers" else tmp_path
        done = subprocess.run(
            [sys.executable, "-m", "attendax", "embed", "a", "--weights", str(weights)],
            env=os.environ | {"PYTHONPATH": path, "INTERRUPT_AT": module},
            capture_output=True,
            timeout=300,
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


class TestHandler:
    @pytest.fixture(autouse=True)
    def _restore(self):
        before = {number: signal.signal(number, handler) for number, handler in exits.UNTOUCHED.items()}
        yield
        for number, handler in before.items():
            signal.signal(number, handler)

    @pytest.mark.smoke
    def test_there_and_back(self):
        for _ in range(2):
            exits.end_at_once()
            assert {signal.getsignal(number) for number in exits.UNTOUCHED} == {exits._end}
            exits.raise_instead()
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            with pytest.raises(exits.Terminated) as caught:
                signal.raise_signal(signal.SIGTERM)
            assert caught.value.status == 143

    def test_an_ignored_interrupt_stays_ignored(self):
        """A job in the background of a script, or under nohup."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        exits.end_at_once()
        exits.raise_instead()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


class TestImport:
    @pytest.mark.parametrize("module", ["attendax", "attendax.spec", "attendax.cli", "attendax.__main__"])
    def test_does_not_load_jax(self, module):
        code = f"import sys, {module}; sys.exit('jax' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)

    @pytest.mark.sample(3)
    @pytest.mark.parametrize("module", ["dispatch", "explanation", "ops", "masks", "encoders", "conformance"])
    def test_each_part_can_be_the_first(self, module):
        subprocess.run([sys.executable, "-c", f"import attendax.{module}"], check=True)

    def test_every_public_name_is_there(self):
        code = "import attendax; names = dir(attendax); from attendax import *; assert attention is attendax.attention"
        code += "; assert set(attendax.__all__) <= {*names} & {*globals()}"
        subprocess.run([sys.executable, "-c", code], check=True)


def test_a_reader_that_leaves_early_gets_no_words():
    """``attendax --version | head -1``: it prints while it reads its arguments."""
    command = [sys.executable, "-u", "-m", "attendax", "--version"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (exits.PIPE_CLOSED, b"")
