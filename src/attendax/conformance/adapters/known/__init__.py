"""Facts about other libraries: where they differ by design, and the causes of their faults that have a name.

They are data, a file of TOML for each family. An entry holds for the adapters that its ``of`` names; the other keys are
the attributes of ``Documented`` and ``Known``. A script knows nothing of attendax, and ends in an error.
"""

import tomllib
from pathlib import Path
from typing import Any

from ..implementation import Documented, Known

DOCUMENTED: dict[str, tuple[Documented, ...]] = {}
KNOWN: dict[str, tuple[Known, ...]] = {}


def _read(text: str) -> None:
    """Add the entries of a file; those of an adapter keep their order."""
    told: dict[str, list[dict[str, Any]]] = tomllib.loads(text)
    kinds: Any = (("by_design", DOCUMENTED, Documented), ("fault", KNOWN, Known))
    for kind, facts, made in kinds:
        for entry in told.get(kind, ()):
            adapters, given = entry.pop("of"), entry | {"cases": tuple(entry["cases"])}
            for name in adapters:
                facts[name] = (*facts.get(name, ()), made(**given))


for _file in sorted(Path(__file__).parent.glob("*.toml")):
    _read(_file.read_text("utf-8"))
SCRIPTS = {one.name: one.script for faults in KNOWN.values() for one in faults if one.script}
