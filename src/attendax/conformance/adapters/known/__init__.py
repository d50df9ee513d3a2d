"""Facts about other libraries: where they differ by design, and the causes of their faults that have a name."""

from . import findings, findings_elsewhere
from .contracts import DOCUMENTED as DOCUMENTED
from .scripts import SCRIPTS as SCRIPTS

KNOWN = findings.KNOWN | findings_elsewhere.KNOWN
