"""What an honest candidate is: the text of a module whose ``attention`` is right."""

import shutil
from pathlib import Path
from typing import NamedTuple

import right_attention


class Honest(NamedTuple):
    """A right candidate: a name, what its arrays are, the text of its module, and arguments of the command.

    ``least``: how many cases it must pass if all are judged.
    """

    name: str
    arrays: str
    text: str
    arguments: tuple[str, ...] = ()
    quick: bool = False
    least: int = 0

    def write(self, folder: Path) -> list[str]:
        """Write the module; the arguments of the command that judge it."""
        shutil.copy(right_attention.__file__, folder)
        carried = "\nattention.backward = backward\n" * ("def backward(grad_output" in self.text)
        (folder / "honest.py").write_text(self.text + carried)
        (folder / "narrow.toml").write_text('[called]\nlacks = ["float64"]\n')
        return ["honest:attention", *self.arguments]
