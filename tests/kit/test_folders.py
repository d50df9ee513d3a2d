"""``attendax inputs``, ``judge`` and ``vectors``: cases as folders, results beside them."""

import json
import re
import shutil
from importlib.resources import files

import numpy as np
import pytest

from attendax import spec
from attendax.cli import main
from attendax.conformance.protocol import SCHEMA
from attendax.conformance.worker.folders import INDEX
from test_conformance_in_ci import fits

SOME = ["--only", "plain", "causal, fewer queries", "mask (T, S)", "grouped heads", "--seed", "5"]


def answer(folder, wrong=False):
    """Write the results of a folder, as a program does that knows neither biases nor bfloat16."""
    case = json.loads((folder / "case.json").read_text())
    if set(case["asks_for"]) - {"lse"} or case["dtype"] != "float32":
        (folder / "error.json").write_text(json.dumps({"kind": "not offered", "said": ["no such option"]}))
        return
    query, key, value = (np.load(folder / f"{name}.npy").astype(float) for name in ("query", "key", "value"))
    shape = (*query.shape[:-1], key.shape[-2])
    allowed = np.broadcast_to(np.load(folder / "allowed.npy") if case["allowed"] else np.True_, shape)
    given = {"mask": allowed, "scale": 1.0 if wrong else case["scale"]}
    if case["direction"] == "forward":
        out, lse = spec.attention(query, key, value, **given, return_lse=True)
        found = {"out": out, "lse": lse}
    else:
        cotangent = {k: np.load(folder / f"cotangent_{k}.npy").astype(float) for k in case["cotangent"]}
        more = {"grad_lse": cotangent["lse"]} if "lse" in cotangent else {}
        grads = spec.attention_backward(cotangent["out"], query, key, value, **given, **more)[:3]
        found = dict(zip(("grad_query", "grad_key", "grad_value"), grads, strict=True))
    for name in case["results"]:
        np.save(folder / f"{name}.npy", found[name].astype(np.float32))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folders that were written once, answered."""
    home = tmp_path_factory.mktemp("folders") / "cases"
    assert main(["inputs", str(home), *SOME]) == 0
    for name in json.loads((home / INDEX).read_text())["folders"]:
        answer(home / name)
    return home


@pytest.fixture
def home(written, tmp_path):
    return shutil.copytree(written, tmp_path / "cases")


def judged(home, capfd, *options):
    capfd.readouterr()
    status = main(["judge", str(home), "--quiet", *options])
    told = capfd.readouterr()
    return status, " ".join((told.out + told.err).split())


def test_right_results(home, capfd, tmp_path):
    """The report of `attendax check`, and its files."""
    json_file = tmp_path / "report.json"
    status, said = judged(home, capfd, "--json", str(json_file), "--require", "gradients")
    assert status == 0, said
    assert " cases pass" in said
    assert re.search(r"gradients are right\. \d+ more cases were not judged:", said)
    assert " (refused with 'no such option')" in said
    report = json.loads(json_file.read_text())
    assert report["seed"] == 5
    assert report["counts"]["ok"] >= 10


@pytest.mark.smoke
def test_wrong_results_have_their_cause(tmp_path, capfd):
    home = tmp_path / "cases"
    assert main(["inputs", str(home), "--only", "causal, more queries"]) == 0
    for folder in home.glob("*/"):
        answer(folder, wrong=True)
    status, said = judged(home, capfd)
    assert status == 1
    assert "1. wrong numbers: scores are not scaled" in said
    assert "process" not in said  # nothing ran
    assert "More cases" not in said  # of other profiles: these were chosen by name
    status, script = judged(home, capfd, "--reproduce", "causal, more queries")
    assert status == 1
    assert "implementation('folder:" in script


@pytest.mark.smoke
def test_missing_results_are_not_judged(home, capfd):
    (home / "plain" / "out.npy").unlink()
    shutil.rmtree(home / "grouped-heads")
    status, said = judged(home, capfd)
    assert status == 1
    assert "No results for 2 of" in said
    assert " pass" in said


def test_what_is_lacking_is_not_written(tmp_path, capfd):
    home = tmp_path / "cases"
    assert main(["inputs", str(home), *SOME, "--lacks", "bias", "bfloat16", "sinks"]) == 0
    assert not list(home.glob("*/bias.npy"))
    for folder in home.glob("*/"):
        answer(folder)
    status, said = judged(home, capfd)
    assert status == 0, said
    assert "2 biases, 2 sinks" in said
    assert "(said to be lacking)" in said
    assert main(["inputs", str(tmp_path / "other"), *SOME, "--lacks", "bais"]) == 2
    assert "lacks got 'bais'" in capfd.readouterr().err


def test_nothing_says_what_is_right(home):
    schema = json.loads(files("attendax.conformance.report").joinpath("case.schema.json").read_text("utf-8"))
    assert schema["properties"]["schema"]["const"] == SCHEMA
    results = set()
    for path in sorted(home.glob("*/case.json")):
        case = json.loads(path.read_text(), parse_constant=pytest.fail)  # NaN is no JSON
        fits({k: x for k, x in case.items() if x is not None}, {**schema, "required": []}, schema)
        assert set(schema["required"]) <= case.keys()
        for array in [*case["arrays"].values(), *case["cotangent"].values(), *filter(None, [case["allowed"]])]:
            found = np.load(path.parent / array["file"])
            assert list(found.shape) == array["shape"]
            assert str(found.dtype) == array["dtype"].replace("bfloat16", "uint16")
            assert found.flags.c_contiguous
        results |= case["results"].keys()
    assert results >= {"out", "grad_query", "grad_key", "grad_value"}


@pytest.mark.slow
def test_every_case_is_as_the_schema_says(tmp_path):
    home = tmp_path / "cases"
    assert main(["inputs", str(home), "--profile", "law", "--seed", "1"]) == 0
    test_nothing_says_what_is_right(home)
    assert len(list(home.glob("*/case.json"))) > 250


def test_vectors(tmp_path):
    """What is right, and how far off it may be: spec in float64 is within it, a wrong scale is not."""
    home = tmp_path / "vectors"
    assert main(["vectors", str(home), *SOME]) == 0
    seen = 0
    for folder in home.glob("*/"):
        answer(folder)
        for right in folder.glob("right_*.npy"):
            name = right.name.removeprefix("right_")
            wanted, allowed = np.load(right), np.load(folder / f"allowed_error_{name}")
            assert wanted.dtype == np.float64
            if (folder / name).exists():
                assert (np.abs(np.load(folder / name) - wanted) <= allowed).all(), right
                assert 0 < allowed < 1e-3
                seen += 1
    assert seen > 20


BROKEN = {  # what is done to a folder, the status, and what is said
    "torn": (lambda home: _cut(home / "plain/out.npy"), 1, "plain: out.npy has 479 bytes of numbers, expected 480"),
    "no array": (lambda home: (home / "plain/out.npy").write_text("1 2"), 1, "plain: out.npy is not a NumPy array"),
    "shape": (lambda home: np.save(home / "plain/out.npy", np.zeros(3)), 1, "out has shape (3,), expected (2, 3,"),
    "NaN": (lambda home: np.save(home / "plain/out.npy", np.full((2, 3, 5, 4), np.nan)), 1, "is NaN"),
    "case": (lambda home: _cut(home / "plain/case.json"), 2, "plain/case.json cannot be read: it is not JSON; write"),
    "newer case": (lambda home: _edit(home / "plain/case.json", schema=9), 2, "case.json is of schema 9, this version"),
    "newer index": (lambda home: _edit(home / INDEX, schema=9), 2, "index.json is of schema 9"),
    "index": (lambda home: _cut(home / INDEX), 2, "index.json cannot be read: it is not JSON"),
    "no index": (lambda home: (home / INDEX).unlink(), 2, "name a folder that `attendax inputs DIR` has written"),
    "empty index": (lambda home: (home / INDEX).write_text(f'{{"schema": {SCHEMA}}}'), 2, "index.json has no folders"),
    "another run": (lambda home: _edit(home / "plain/case.json", id="0"), 2, "plain/case.json is of another run than"),
    "another seed": (lambda home: _seed(home, 6), 2, "none of its folders has the numbers of seed 6"),
    "no seed": (lambda home: _seed(home, "x"), 2, "seed got 'x', expected 0 or more"),
}  # fmt: skip


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _edit(path, **given):
    path.write_text(json.dumps(json.loads(path.read_text()) | given))


def _seed(home, seed):
    _edit(home / INDEX, asked=json.loads((home / INDEX).read_text())["asked"] | {"seed": seed})


@pytest.mark.smoke
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_folder(what, home, capfd, no_causes):
    """What is refused is refused in one line; nothing is lost."""
    does, expected, words = BROKEN[what]
    does(home)
    before = sorted(home.rglob("*"))
    status, said = judged(home, capfd)
    assert status == expected, said
    assert words.replace(" ", "") in said.replace(" ", "")  # a long path is broken where the line ends
    assert (said.startswith("attendax judge: ")) == (status == 2)
    assert sorted(home.rglob("*")) == before


@pytest.mark.smoke
def test_folders_are_not_written_over(home, capfd, tmp_path, monkeypatch):
    """And half of them is none: an error leaves nothing behind."""
    assert main(["inputs", str(home), *SOME]) == 2
    assert "is there already: name a new folder" in capfd.readouterr().err
    assert main(["inputs", str(tmp_path / "no" / "cases"), *SOME]) == 2
    assert "there is no folder" in capfd.readouterr().err
    from attendax.conformance.command import folders

    monkeypatch.setattr(folders.Recorder, "_written", lambda self, told: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["inputs", str(tmp_path / "half"), *SOME])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cases"]
