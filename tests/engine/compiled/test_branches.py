"""Branches that a program takes only for some numbers: a list of them, and what each is for."""

import ast
from pathlib import Path

import attendax

BRANCHES = {
    "kernels/blockwise/partition.py _answers": "tiles that other masks leave open: of them alone a function is asked",
    "kernels/cudnn.py forward": "rows that see what is not finite; entered by test_cudnn.py",
    "kernels/cudnn.py cotangent": "the same, or gradients that may overflow; entered by test_cudnn.py",
}


def branches():
    """Where the package chooses at run time which of two programs runs: file and function."""
    package = Path(attendax.__file__).parent
    for path in sorted(package.rglob("*.py")):
        for function in ast.parse(path.read_text("utf-8")).body:
            calls = (x.func for x in ast.walk(function) if isinstance(x, ast.Call))
            names = [x.attr for x in calls if isinstance(x, ast.Attribute)]
            for _ in range(sum(name in ("cond", "switch", "while_loop") for name in names)):
                yield f"{path.relative_to(package).as_posix()} {getattr(function, 'name', '')}"


def test_every_branch_is_in_the_list():
    assert sorted(branches()) == sorted(BRANCHES)
