"""Judge anyone's attention: cases that each cite a law, verdicts, and reproductions; right is what ``spec`` says."""

from .adapters import ADAPTERS as ADAPTERS
from .adapters.adapter import Adapter as Adapter
from .cases import CASES as CASES
from .cases import Case as Case
from .checking import assert_conforms as assert_conforms
from .checking import check as check
from .differences import directional_difference as directional_difference
from .gradients import assert_gradients as assert_gradients
from .implementation import Implementation as Implementation
from .outcomes import Outcome as Outcome
from .refusals import assert_refuses as assert_refuses
from .report import Report as Report
from .verdicts import Finding as Finding
from .verdicts import Verdict as Verdict
