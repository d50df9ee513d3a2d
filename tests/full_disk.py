"""A disk without room, by a limit of the size of files: each may grow again before pytest writes of it."""

import contextlib


@contextlib.contextmanager
def full_disk(limit=64):
    """No file grows beyond the limit in bytes."""
    import resource  # not on Windows

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
