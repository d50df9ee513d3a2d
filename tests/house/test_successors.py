"""A command or an option that left says in one line what replaces it."""

import pytest

from attendax.cli import main
from attendax.successors import LAYERS, PATHS, SUCCESSORS
from places import ROOT

pytestmark = pytest.mark.smoke


def test_each_names_its_successor(capfd):
    page = (ROOT / "docs/migrate.md").read_text("utf-8")
    for name, successor in SUCCESSORS.items():
        assert main([*name.split(), "x"]) == 2
        assert capfd.readouterr() == ("", f"attendax {name} was removed: {successor}\n")
        assert all(word in page for word in name.split() if word not in {*PATHS, *LAYERS})
