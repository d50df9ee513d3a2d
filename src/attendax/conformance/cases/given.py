"""The writing of cases: the options of a call, each as Python that makes it and the keyword that gives it."""

from typing import Any, NamedTuple

from .case import ARRAYS, FORWARD, GRADIENT, SIZES, Case


class Given(NamedTuple):
    """Options of a call, as Python that makes them and the keywords that give them. ``one & other`` is both."""

    lines: str = ""
    call: str = ""

    def __and__(self, other: "Given") -> "Given":
        lines, calls = zip(self, other, strict=True)
        return Given("\n".join(filter(None, lines)), ", ".join(filter(None, calls)))


def words(call: str) -> Given:
    """Keywords whose values are written there."""
    return Given(call=call)


def mask(made: str) -> Given:
    """A mask."""
    return Given(f"mask = {made}", "mask=mask")


def bias(made: str) -> Given:
    """A bias."""
    return Given(f"bias = {made}", "bias=bias")


def random_mask(shape: str, key: str | int = 2) -> Given:
    """A mask of half of the pairs; a key is always allowed, so that no row is empty."""
    return mask(f"rng.random({shape}) < 0.5; mask[..., {key}] = True")


def random_bias(shape: str) -> Given:
    """A bias of normal numbers."""
    return bias(f"rng.standard_normal({shape}).astype(dtype)")


def lengths(made: str) -> Given:
    """The number of keys of each batch."""
    return Given(f'key_lengths = np.array({made}, "int32")', "key_lengths=key_lengths")


def segments(queries: str, keys: str = "") -> Given:
    """Ids of the queries and of the keys; the same for both unless given."""
    if not keys:
        return Given(f'ids = np.array({queries}, "int32")', "query_segment_ids=ids, key_segment_ids=ids")
    made = f'q_ids = np.array({queries}, "int32")\nk_ids = np.array({keys}, "int32")'
    return Given(made, "query_segment_ids=q_ids, key_segment_ids=k_ids")


NOTHING, CAUSAL, LSE = Given(), words("is_causal=True"), words("return_lse=True")


def case(law: str, name: str, about: str, given: Given = NOTHING, direction: str = FORWARD, **more: Any) -> Case:
    """A case of what is given; sizes by the names of their axes, other fields by theirs.

    Where a bias or sinks have a gradient, that is a trait of the case.
    """
    sizes = {axis: more.pop(axis) for axis in ("A", *SIZES) if axis in more}
    backward = GRADIENT in direction or direction.startswith("second")
    moving = (x for x in ARRAYS[3:] if f"{x}=" in given.call and x not in more.get("constants", ()))
    needs = (*more.pop("needs", ()), *(f"gradient of {x}" for x in moving if backward))
    return Case(name, law, about, direction=direction, **given._asdict(), sizes=sizes, needs=needs, **more)


def gradient(name: str, about: str, given: Given = NOTHING, law: str = "L13", **more: Any) -> Case:
    """Gradients of every floating array for a random cotangent."""
    return case(law, f"gradient: {name}", about, given, GRADIENT, **more)
