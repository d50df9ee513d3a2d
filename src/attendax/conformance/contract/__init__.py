"""The contract of a function: how it is called, and what it means by each of its options."""

from .contract import Contract as Contract
from .describing import describe as describe
