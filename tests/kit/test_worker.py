"""The other process: a function that dies, hangs, floods or answers junk is an outcome, and the next case is judged."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
import pytest

import dying
from attendax.conformance import CASES, Verdict, protocol
from attendax.conformance.worker import place
from attendax.conformance.worker.calling import asked, subject_of
from attendax.conformance.worker.child import Child
from attendax.conformance.worker.errors import Failed, NoNumbers, answered
from libraries import implementation
from places import PYTHONPATH
from stated import check

ASKED = {"only": ["scale given", "width 1"], "level": "forward", "seed": 0}
LAST = "width 1"  # judged after the fault
SECONDS = 4.0
CRASHES = {
    "exits_with_0": ("obscure error", "SystemExit: 0"),
    "ends_with_0": ("crash", "its process ended with exit status 0"),
    "ends_with_1": ("crash", "its process ended with exit status 1"),
    "ends_in_a_thread": ("crash", "its process ended with exit status 0"),
    "is_killed": ("crash", "its process was ended by SIGKILL, as the system does when memory runs out"),
    "reads_at_0": ("crash", "its process was ended by SIGSEGV; it said: a pointer of 0"),
    "hangs": ("timeout", "no answer in 4 seconds"),
    "prints_for_ever": ("timeout", "no answer in 4 seconds"),
    "prints_much": ("ok", ""),
    "closes_everything": ("crash", "its process closed its output"),
    "leaves_children": ("crash", "its process ended with exit status 3"),
    "has_no_end": ("obscure error", "RecursionError: maximum recursion depth exceeded"),
    "has_no_memory": ("obscure error", "MemoryError"),
    "answers_junk": ("crash", "its process wrote to the pipe of the answers"),
    "gives_a_torn_file": ("crash", "out.npy has 959 bytes of numbers, expected 960: it is torn"),
    "gives_text": ("crash", "out.npy is not a NumPy array"),
    "gives_objects": ("crash", "out.npy is object, expected real numbers"),
    "gives_a_pipe": ("crash", "out.npy is not a file of at most"),
    "gives_a_link": ("crash", "out.npy cannot be read"),
    "gives_an_unknown_error": ("crash", "error.json says nothing that is known"),
    "removes_its_folder": ("crash", "No such file or directory"),
    "gives_too_much": ("crash", "out.npy is not a file of at most"),
}


def test_every_way_to_die_is_tried():
    assert len(CRASHES) == len(dying.WAYS) + len(dying.ODD)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    """Neither folders nor processes."""

    def folders():
        places = [folder for folder in ("/dev/shm", tempfile.gettempdir()) if os.path.isdir(folder)]
        names = {name for folder in places for name in os.listdir(folder)}
        return {name for name in names if name.startswith(f"attendax-{os.getpid()}-")}

    before = folders()  # what ``assert_conforms`` keeps for the next case
    yield
    assert folders() <= before


@pytest.mark.sample(9)
@pytest.mark.parametrize("way", CRASHES)
def test_it_is_an_outcome(way):
    verdict, words = CRASHES[way]
    report = check(f"dying:it_{way}", arrays="numpy", timeout=SECONDS if verdict == "timeout" else 60.0, **ASKED)
    found = {o.case.name: o for o in report.cases}
    assert (found["scale given"].verdict, report.process) == (verdict, "")
    assert words in found["scale given"].finding.message
    assert found[LAST].verdict == "ok"  # by another process
    assert report.ok == (verdict == "ok")
    assert all(report.to_dict() and text() for text in (report.to_json, report.to_markdown))
    if not report.ok and verdict != "obscure error":
        (cause,) = report.causes
        assert (cause.harm, " fails: " in cause.name, cause.remedy) == ("crash", True, "")
        assert words in found["scale given"].reproduction


class Waiting(Child):
    """A process that has waited for a core longer each time that it is asked, and answers at last."""

    def __init__(self, *waited):
        self.events, self.left = queue.SimpleQueue(), list(waited)

    def waited(self):
        if len(self.left) == 1:
            self.events.put(b"answer")
        return self.left.pop(0)


@pytest.mark.smoke
def test_waiting_for_a_core_does_not_count_as_time_of_the_function():
    assert Waiting(0.0, 0.06, 0.12).event(0.02) == b"answer"
    with pytest.raises(queue.Empty):  # one that sleeps has not waited for a core
        Waiting(1.0, 1.0, 1.0).event(0.02)
    with pytest.raises(queue.Empty):  # no more than a few times its limit is added
        Waiting(0.0, 0.17, 100.0, 200.0).event(0.02)


@pytest.mark.parametrize(
    ("kind", "error"), [("no numbers", NoNumbers), ("failed", Failed), ("not offered", NotImplementedError)]
)
@pytest.mark.parametrize("said", [[], ["x"], [["x"], {}, 1, 2]])
def test_an_incomplete_answer_raises_its_kind_of_error(kind, error, said):
    with pytest.raises(error) as raised:
        answered((kind, said))
    assert len(raised.value.args) == {"no numbers": 2, "failed": 2, "not offered": 1}[kind]


def test_a_function_that_always_crashes_fails_every_case():
    report = check("dying:dies", **ASKED)
    assert report.counts() == {"crash": 2, "not offered": 1}  # it has no argument scale


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["dies_at_import", "hangs_at_import"])
def test_what_dies_when_it_is_imported_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / "dies_at_import.py").write_text("import os\nos._exit(0)\n")
    (tmp_path / "hangs_at_import.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("attendax.conformance.worker.calling.IMPORT_SECONDS", 2.0)
    with pytest.raises(ValueError, match=f"check: {name}:fn: when it was imported: ") as refused:
        check(f"{name}:fn", timeout=1.0)
    assert "\n" not in str(refused.value)


@pytest.mark.smoke
def test_the_total_time():
    report = check("dying:it_hangs", arrays="numpy", total_timeout=1e-9, **ASKED)
    assert report.counts() == {"not judged": len(report.cases)}
    assert not report.ok
    assert {o.finding.message for o in report.cases} == {"no time left"}


class TestPlace:
    def test_what_no_other_process_can_import_is_called_here_and_that_is_told(self):
        report = check(lambda query, key, value: dying.right(query, key, value), arrays="numpy", **ASKED)
        assert "the function is defined inside another function, or is a lambda" in report.process
        assert json.loads(report.to_json())["process"] == report.process
        assert report.process in report.to_markdown()

    def test_what_can_be_imported_is_called_there(self):
        assert check(dying.right, **ASKED).process == ""
        assert check(dying.right, in_process=True, **ASKED).process == "as requested"
        assert check(implementation("attendax-spec"), **ASKED).process == "its functions were given"

    def test_the_module_is_not_imported_here(self, tmp_path, monkeypatch):
        (tmp_path / "never_here.py").write_text("from dying import right\n")
        monkeypatch.syspath_prepend(tmp_path)
        assert check("never_here:right", **ASKED).ok
        assert "never_here" not in sys.modules


@pytest.mark.smoke
@pytest.mark.sample(40)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
def test_a_request_comes_as_it_was(tmp_path, case, dtype):
    request = asked(case.inputs(0, dtype), case.direction)
    protocol.write_case(tmp_path, request._asdict())
    equal(protocol.read_request(tmp_path), request)


def equal(got, wanted):
    if isinstance(wanted, np.ndarray):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert got.strides == wanted.strides or not wanted.size
        np.testing.assert_array_equal(got, wanted)
    elif isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        [equal(got[k], wanted[k]) for k in wanted]
    elif isinstance(wanted, protocol.Request):
        equal(got._asdict(), wanted._asdict())
    else:
        assert (type(got), got) == (type(wanted), wanted)


@pytest.mark.smoke
@pytest.mark.parametrize("part", [np.s_[::-1], np.s_[1:, ::-2], np.s_[..., None], np.s_[:0], np.s_[2]])
def test_a_view_comes_as_the_same_view(tmp_path, part):
    x = np.arange(60.0).reshape(5, 12).T[part]
    told = protocol._put(tmp_path, "x", x)
    equal(protocol._get(tmp_path, json.loads(json.dumps(told))), x)


@pytest.mark.smoke
def test_results_come_as_they_were(tmp_path):
    leaves = {"out": np.ones(3, ml_dtypes.bfloat16), "lse": np.ones((), np.float32), "grad query": np.zeros((0, 2))}
    protocol.write_results(tmp_path, leaves)
    equal(protocol.read_results(tmp_path, 10**4), {k: leaves[k] for k in ("grad query", "lse", "out")})


def test_the_other_process_is_told_nothing_of_what_is_right(tmp_path):
    case = next(case for case in CASES if case.name == "gradient: lse")
    protocol.write_case(tmp_path, asked(case.inputs(12345, "float32"), case.direction)._asdict())
    text = (tmp_path / "case.json").read_text()
    assert "lse_cotangent" not in text
    for word in (case.name, case.law, "seed", "12345", "tolerance", "expected"):
        assert word not in text


def test_its_memory_cannot_be_read(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("Linux alone has it")
    from ctypes import CDLL

    before = CDLL(None).prctl(3, 0, 0, 0, 0)
    made = place.implement("dying:right")
    assert CDLL(None).prctl(3, 0, 0, 0, 0) == 0
    subject_of(made).close()
    assert CDLL(None).prctl(3, 0, 0, 0, 0) == before


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_judge_that_is_killed_leaves_nothing(tmp_path):
    code = """
import os, signal, sys
from attendax.conformance.worker import place
made = place.implement("dying:right")
worker = made.attend
from attendax.conformance import CASES
from attendax.conformance.worker.calling import call
call(made, CASES[0].inputs(0, "float32"), "forward")
print(worker.child.process.pid, *worker.folders, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    number, *folders = process.communicate(timeout=60)[0].split()
    assert folders
    while os.path.exists(f"/proc/{number}"):  # if it never ends, the run of the tests says so
        os.sched_yield()
    assert not any(map(os.path.exists, folders))


def test_verdicts_that_fail():
    assert Verdict.CRASH.fails
    assert Verdict.TIMEOUT.fails
    assert not Verdict.NOT_JUDGED.fails


class TestCommand:
    """What is written when a function dies, and how the command and the plugin of pytest end."""

    GIVEN = ("--only", "width 1", "--level", "forward", "--budget", "0", "--seed", "0")

    def environment(self):
        return os.environ | {"PYTHONPATH": PYTHONPATH}

    def test_every_report_is_written_and_the_status_is_1(self, tmp_path):
        pytest.importorskip("rich", reason="the extra 'check' is not installed")
        files = [f"--{kind}={tmp_path / kind}" for kind in ("json", "markdown")]
        argv = [sys.executable, "-m", "attendax", "check", "dying:dies_at_width_1", *self.GIVEN, *files]
        ran = subprocess.run(argv, env=self.environment(), capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (1, "")
        assert "crash: a legal call fails: its process was ended by SIGKILL" in " ".join(ran.stdout.split())
        assert all((tmp_path / kind).stat().st_size for kind in ("json", "markdown"))
        (case,) = (c for c in json.loads((tmp_path / "json").read_text())["cases"] if c["verdict"] == "crash")
        assert case["name"] == "width 1"

    def test_a_plugin_goes_on_after_a_death(self, tmp_path):
        options = ["--attention=dying:dies_at_width_1", "--attention-only=width 1", "--attention-only=scale given"]
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:attendax",
            "-p",
            "attendax_pytest",
            *options,
        ]
        argv += ["--attention-level=forward", "--attention-seed=3", "--noconftest", "-o", "addopts="]
        ran = subprocess.run(argv, cwd=tmp_path, env=self.environment(), capture_output=True, text=True, check=False)
        assert ran.returncode == 1, ran.stdout
        assert "SIGKILL" in ran.stdout
        assert "1 failed" in ran.stdout
        assert "passed" in ran.stdout
        assert "(--attention-seed 3)" in ran.stdout

    @pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
    def test_ctrl_c_leaves_no_process(self, tmp_path):
        pytest.importorskip("rich", reason="the extra 'check' is not installed")
        (tmp_path / "slow.py").write_text(
            "import os, time\n\n\ndef attend(query, key, value, *, scale=None):\n"
            "    open('pid', 'w').write(str(os.getpid()))\n    os.rename('pid', 'started')\n    time.sleep(1000)\n"
        )
        argv = [sys.executable, "-m", "attendax", "check", "slow:attend", *self.GIVEN]
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        process = subprocess.Popen(argv, env=self.environment(), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        signal.signal(signal.SIGINT, before)
        while not (tmp_path / "started").exists():
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 130
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "started").read_text()), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_threads_of_openmp_sleep_while_they_wait():
    """On a busy machine they would spend the CPU seconds of the run."""
    child = Child()
    with open(f"/proc/{child.process.pid}/environ", "rb") as file:
        assert b"OMP_WAIT_POLICY=PASSIVE" in file.read().split(b"\0")
    child.kill()
    child.process.wait()
