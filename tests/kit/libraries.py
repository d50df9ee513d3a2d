"""The adapters of the benchmarks, for tests that judge functions of libraries."""

import sys

from places import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import matrix as matrix
from command_line import main as main
from matrix.adapters import ADAPTERS as ADAPTERS
from matrix.adapters import implementation as implementation
from matrix.adapters.known import DOCUMENTED as DOCUMENTED
from matrix.adapters.known import KNOWN as KNOWN
from matrix.adapters.known import SCRIPTS as SCRIPTS
from matrix.adapters.known import Known as Known
from matrix.adapters.known import applied as applied
from matrix.adapters.known import matches as matches

SPEC = "benchmarks.matrix.adapters:attendax_spec"  # from the root of the repository
