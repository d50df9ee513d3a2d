"""``attendax diff``: by which conventions do two functions differ, and what makes them equal?"""

from .report import Report as Report
from .report import diff as diff
