"""Optional packages: one place that imports them, and one error that names the command which installs them."""

import importlib
import shlex
import sys
from types import ModuleType


def require(module: str, function: str, *, extra: str = "demo") -> ModuleType:
    """Import ``module``, a part of an extra.

    Args:
        module: dotted name, such as ``"safetensors.numpy"``.
        function: what needs it; the error begins with this name.
        extra: the extra that brings it.

    Raises:
        ModuleNotFoundError: it is not installed; the message names the command that installs it.

    Example:
        >>> require("json", "reader").loads("[1]")
        [1]
        >>> require("no_such_package", "reader")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ModuleNotFoundError: reader: the package no_such_package is not installed; run: ... pip install "attendax[demo]"
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # the package is there; something that it needs is not
        command = pip_install(f'"attendax[{extra}]"')
        raise ModuleNotFoundError(
            f"{function}: the package {package} is not installed; run: {command}", name=package
        ) from None


def pip_install(arguments: str) -> str:
    """The command that installs into the environment that is running: the ``pip`` on the path may be another's."""
    return f"{shlex.quote(sys.executable or 'python')} -m pip install {arguments}"
