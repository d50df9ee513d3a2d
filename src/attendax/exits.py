"""How a command ends: the exit statuses, and the error that says what the user has to change."""

FAILED, REFUSED, PIPE_CLOSED = 1, 2, 141  # the last is what a shell gives; for Ctrl-C see ``interrupts``


class Refusal(Exception):
    """What the user has to change: printed on one line, no traceback."""
