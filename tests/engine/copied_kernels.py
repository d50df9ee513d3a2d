"""A copy of the kernels and of what stands above them up to ``dispatch.py``, under another name, for mistakes.

The native library stays behind, so the default of a copy is the tiles, where the mistakes are. The context of JAX that
a division sets is the one of the original: a new one would have every primitive of JAX compiled anew.
"""

import re
import shutil
from pathlib import Path

import attendax

CONTEXT, SHARED = "DIVISION = jax.make_user_context(None)", "from attendax.sharding.division import DIVISION"


def copied(to):
    """Make it in the folder ``to``, whose name is that of the package; it imports itself."""
    package = Path(attendax.__file__).parent
    left = shutil.ignore_patterns("__pycache__", "libattendax.*", "csrc")
    for part in ("kernels", "sharding"):
        shutil.copytree(package / part, to / part, ignore=left)
    for part in ("dispatch.py", "inspection.py"):
        shutil.copy(package / part, to)
    for file in to.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        text = re.sub(r"from attendax\.(kernels|sharding)", rf"from {to.name}.\1", text)
        file.write_text(text.replace(CONTEXT, SHARED), encoding="utf-8")
    assert SHARED in (to / "sharding" / "division.py").read_text(encoding="utf-8")
