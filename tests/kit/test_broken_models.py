"""`check_model` on models with the bugs of public threads, and on sound ones.

To collect these tests imports torch and keras, which the tests of the command itself do without.
"""

import importlib
import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from attendax.conformance import check_model
from attendax.conformance.models.describing import described
from broken_models import Entry
from places import KIT

FILES = {"in_torch": "torch", "in_jax": "jax", "in_keras": "keras"}


pytestmark = pytest.mark.usefixtures("as_users_have_it")


def entries(kind):
    """Of every framework that is installed; of the others one test that is skipped. What is compiled is slow."""
    found = []
    for file, package in FILES.items():
        if importlib.util.find_spec(package) is None:
            found.append(pytest.param(None, id=package, marks=pytest.mark.skip(f"{package} is not installed")))
            continue
        module = importlib.import_module(f"broken_models.{file}")
        marks = [] if package == "torch" else [pytest.mark.slow]
        found += [pytest.param(entry, id=f"{package}, {entry.name}", marks=marks) for entry in getattr(module, kind)]
    return found


def model_of(entry: Entry):
    """Described once: JAX compiles anew for a model that is made anew."""
    made, known = entry.make(), entry.said
    made, known = made if isinstance(made, tuple) else (made, known)
    return described(made, **known)


def judged(entry: Entry, **said):
    return check_model(model_of(entry), **said)


@pytest.mark.parametrize("entry", entries("BROKEN"))
def test_a_broken_model_is_found_by_the_right_law_first(entry):
    report = judged(entry, seed=7)
    assert not report.ok
    assert report.causes[0].name.partition(":")[0] == entry.law
    assert all(outcome.reproduction for outcome in report.failures)


@pytest.mark.parametrize("entry", entries("SOUND"))
def test_a_sound_model_is_not_accused(entry):
    report = judged(entry, seed=11)
    assert report.ok, [outcome.told() for outcome in report.failures]


@pytest.mark.sample(1)
@pytest.mark.parametrize("file", [file for file in FILES if file != "in_torch"])
def test_models_that_are_compiled_are_judged_by_a_law(file):
    """A broken one and a sound one, in short texts: JAX compiles anew for each length of a text."""
    pytest.importorskip(FILES[file])
    module = importlib.import_module(f"broken_models.{file}")
    broken = module.BROKEN[0]
    sound = next(entry for entry in module.SOUND if entry.said == broken.said)
    broken, sound = (entry._replace(said=entry.said | {"longest": 20}) for entry in (broken, sound))
    report = judged(broken, seed=7, only=[broken.law])
    assert [cause.name.partition(":")[0] for cause in report.causes] == [broken.law]
    report = judged(sound, seed=11, only=[broken.law])
    assert report.ok, [outcome.told() for outcome in report.failures]
    assert report.counts()["ok"] >= 1


@pytest.mark.slow
@pytest.mark.hours
@pytest.mark.parametrize("entry", entries("SOUND"))
def test_a_sound_model_is_not_accused_by_any_seed(entry):
    model = model_of(entry)
    for seed in np.random.default_rng(3).integers(2**24, size=20):
        report = check_model(model, seed=int(seed))
        assert report.ok, (int(seed), [outcome.told() for outcome in report.failures])


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["cache", "gradient", "packing", "past", "heads", "kept, and not scaled"])
def test_scripts_of_torch_models_show_it(kind, tmp_path):
    """The lines that make the model are the test's own: what is tried is all that follows."""
    pytest.importorskip("torch")
    from broken_models import in_torch

    found = (e for e in in_torch.BROKEN if e.law == kind or e.name == kind or (kind == "past" and "batch" in e.name))
    entry = next(found)
    report = judged(entry, seed=7)
    text = next(o.reproduction for o in report.failures if o.case.law in (kind, entry.law))
    maker = entry.make.__defaults__[0] if entry.make.__name__ == "<lambda>" else entry.make
    tests = str(KIT)
    home = f"import sys\nsys.path.insert(0, {tests!r})\nfrom broken_models.in_torch import {maker.__name__}"
    lines = [line for line in text.splitlines() if not line.startswith("raise NotImplementedError('define ")]
    at = lines.index("# the model") + 1
    lines[at:at] = [home, f"model = {maker.__name__}()"]
    if kind == "cache":
        lines.insert(at + 3, "cache = model.cache()")
    (tmp_path / "shows.py").write_text("\n".join(lines))
    shown = subprocess.run([sys.executable, tmp_path / "shows.py"], capture_output=True, text=True, check=False)
    assert shown.returncode == 1
    assert "AssertionError" in shown.stderr.splitlines()[-1], shown.stderr
