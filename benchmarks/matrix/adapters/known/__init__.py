"""Facts about other libraries: where they differ by design, and the causes of their faults that have a name.

They are data, a file of TOML for each family, and one for what several have. The keys of an entry are the attributes of
``Documented`` and ``Known``; it holds for the adapters of which it has a ``source`` or a ``where``. A script knows
nothing of attendax, and ends in an error.
"""

import tomllib
from pathlib import Path
from typing import Any

from attendax.conformance.adapters.implementation import Documented, Known

DOCUMENTED: dict[str, tuple[Documented, ...]] = {}
KNOWN: dict[str, tuple[Known, ...]] = {}
for _file in sorted(Path(__file__).parent.glob("*.toml")):
    _told: dict[str, list[dict[str, Any]]] = tomllib.loads(_file.read_text("utf-8"))
    _kinds: Any = (("by_design", DOCUMENTED, Documented, "source"), ("fault", KNOWN, Known, "where"))
    for _kind, _facts, _made, _place in _kinds:
        for _entry in _told.get(_kind, ()):
            for _names, _text in _entry.pop(_place).items():
                _one = _made(**_entry | {"cases": tuple(_entry["cases"]), _place: _text})
                _facts |= {_name: (*_facts.get(_name, ()), _one) for _name in _names.split(", ")}
SCRIPTS = {one.name: one.script for faults in KNOWN.values() for one in faults if one.script}
