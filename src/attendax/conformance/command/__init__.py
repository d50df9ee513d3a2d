"""``attendax check``, ``inputs``, ``judge``, ``vectors`` and ``pytest --attention``: what is asked for, and how."""

from .arguments import add_arguments as add_arguments
from .of_models import command_for as command_for
from .running import run as run
