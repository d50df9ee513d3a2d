"""``attendax check``, ``inputs``, ``judge``, ``vectors`` and ``pytest --attention``."""
