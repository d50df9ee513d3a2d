"""A copy of the kernels and of what stands above them up to the door, under another name, for mistakes.

The native library stays behind, so the default of a copy is the tiles, where the mistakes are.
"""

import re
import shutil
from pathlib import Path

import attendax


def copied(to):
    """Make it in the folder ``to``, whose name is that of the package; it imports itself."""
    package = Path(attendax.__file__).parent
    left = shutil.ignore_patterns("__pycache__", "libattendax.*", "csrc")
    for part in ("kernels", "sharding"):
        shutil.copytree(package / part, to / part, ignore=left)
    for part in ("door.py", "inspection.py"):
        shutil.copy(package / part, to)
    for file in to.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub(r"from attendax\.(kernels|sharding)", rf"from {to.name}.\1", text), encoding="utf-8")
