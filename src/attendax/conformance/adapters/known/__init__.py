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
for _file in sorted(Path(__file__).parent.glob("*.toml")):
    _told: dict[str, list[dict[str, Any]]] = tomllib.loads(_file.read_text("utf-8"))
    _kinds: Any = (("by_design", DOCUMENTED, Documented), ("fault", KNOWN, Known))
    for _kind, _facts, _made in _kinds:
        for _entry in _told.get(_kind, ()):
            for _name in _entry.pop("of"):
                _facts[_name] = (*_facts.get(_name, ()), _made(**_entry | {"cases": tuple(_entry["cases"])}))
SCRIPTS = {one.name: one.script for faults in KNOWN.values() for one in faults if one.script}
