"""Optional packages: one place that imports them, and one error that names the command which installs them.

No index has attendax: an extra is installed from a clone of its repository.
"""

import importlib
import shlex
import sys
from types import ModuleType


def require(module: str, function: str, *, extra: str | None = "demo") -> ModuleType:
    """Import ``module``, a part of an extra or a package of its own.

    Args:
        module: dotted name, such as ``"safetensors.numpy"``.
        function: what needs it; the error begins with this name.
        extra: the extra that brings it; None where pip installs the package itself.

    Raises:
        ModuleNotFoundError: it is not installed; the message names the command that installs it.

    Example:
        >>> require("json", "reader").loads("[1]")
        [1]
        >>> require("no_such_package", "reader")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ModuleNotFoundError: reader: the package no_such_package is not installed; run, in a clone of attendax: ...
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # the package is there; something that it needs is not
        how = f"run: {pip_install(package)}" if extra is None else extra_install(extra)
        raise ModuleNotFoundError(f"{function}: the package {package} is not installed; {how}", name=package) from None


def extra_install(extra: str) -> str:
    """Words for how to install an extra: the end of a sentence.

    Example:
        >>> extra_install("demo")  # doctest: +ELLIPSIS
        'run, in a clone of attendax: ... -m pip install ".[demo]"'
    """
    command = pip_install(f'".[{extra}]"')
    return f"run, in a clone of attendax: {command}"


def pip_install(arguments: str) -> str:
    """The command that installs into the environment that is running: the ``pip`` on the path may be another's."""
    return f"{shlex.quote(sys.executable or 'python')} -m pip install {arguments}"
