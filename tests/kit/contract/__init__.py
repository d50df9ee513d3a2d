"""Attention functions as people write them, right by their own conventions, and with one line off."""

import inspect


def variants(space, base, *names):
    """``base(..., off="")`` as ``name`` for "", and ``name_off`` for each line that may be off."""
    signature = inspect.signature(base)
    signature = signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "off"])
    for name in ("", *names):

        def made(*args, __name=name, **more):
            return base(*args, **more, off=__name)

        made.__signature__, made.__doc__ = signature, base.__doc__
        made.__name__ = made.__qualname__ = base.__name__.strip("_") + (f"_{name}" if name else "")
        made.__module__ = base.__module__
        space[made.__name__] = made
