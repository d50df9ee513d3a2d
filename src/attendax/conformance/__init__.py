"""Judge anyone's attention: cases that each cite a law, verdicts, and reproductions; right is what ``spec`` says."""

from .adapters import ADAPTERS as ADAPTERS
from .adapters.adapter import Adapter as Adapter
from .adapters.implementation import Implementation as Implementation
from .cases import CASES as CASES
from .cases import Case as Case
from .checking import assert_conforms as assert_conforms
from .checking import assert_refuses as assert_refuses
from .checking import check as check
from .differences import directional_difference as directional_difference
from .gradients import assert_gradients as assert_gradients
from .judge.verdicts import Finding as Finding
from .judge.verdicts import Verdict as Verdict
from .models import assert_model as assert_model
from .models import check_model as check_model
from .report import Report as Report
from .report.outcomes import Outcome as Outcome
