"""`.ci/touched`: a part of `.ci/run` is left out only where no change can touch it, and has its turn then, too."""

import shutil
import subprocess

import pytest

from places import ROOT

PARTS = ("tiles", "docs", "dist", "gpu", "proofs")


class Clone:
    """A repository with `.ci` and commits that change a file."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(ROOT / ".ci", folder / ".ci")
        self.git("init", "--quiet")
        self.changed("README.md")

    def git(self, *words):
        name = ["-c", "user.name=a", "-c", "user.email=a@b.test", "-c", "commit.gpgsign=false"]
        command = ["git", *name, *words]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout.strip()

    def changed(self, file):
        """The commit."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + "\n" if path.exists() else "\n")
        self.git("add", ".")
        self.git("commit", "-m", file)
        return self.git("rev-parse", "HEAD")

    def parts(self, *since):
        """Those that run."""
        return {part for part in PARTS if self.runs(part, *since)}

    def runs(self, part, *since):
        command = [self.folder / ".ci" / "touched", part, *since]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout.startswith(f"{part}: ")
        return done.returncode == 0


@pytest.fixture
def clone(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("no git")
    return Clone(tmp_path)


TOUCHED = {
    "src/attendax/masks.py": {"tiles", "docs", "dist", "gpu"},
    "docs/masks.md": {"docs"},
    "docs/proofs/Softmax.v": {"docs", "proofs"},
    "tests/kit/test_forms.py": set(),
    "tests/engine/test_laws.py": {"tiles"},
    "src/attendax/learn/folders.py": {"docs", "dist"},
    "pyproject.toml": {"tiles", "docs", "dist", "gpu"},
    ".ci/tiles": {"tiles", "docs", "dist", "gpu", "proofs"},
}


def test_what_a_change_touches(clone):
    for file, touched in TOUCHED.items():
        since = clone.changed("README.md")
        while clone.parts(since):  # in turn
            since = clone.changed("README.md")
        clone.changed(file)
        assert touched <= clone.parts(since), file
        assert len(clone.parts(since) - touched) <= 1, file  # whose turn it is


def test_without_a_known_commit_everything_runs(clone):
    assert clone.parts() == clone.parts("0" * 40) == set(PARTS)


def test_what_is_not_touched_has_its_turn(clone):
    since, ran = clone.changed("README.md"), []
    for _ in range(12):
        clone.changed("tests/kit/test_forms.py")
        ran += clone.parts(since)
    assert sorted(ran) == sorted(PARTS)


def test_the_paths_of_tiles_are_there():
    """One that is gone would end it, or bring back what needs no second run."""
    words = (ROOT / ".ci" / "tiles").read_text("utf-8").partition('="$share" ')[2].partition("-k")[0].split()
    assert len(paths := [word for word in words if word[0] not in "-\\"]) > 10
    assert [path for path in paths if not (ROOT / "tests" / "engine" / path).exists()] == []
