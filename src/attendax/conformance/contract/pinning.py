"""A contract file: TOML that pins how a function is called and what it means. Each difference from it is a fault."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from attendax.exits import Refusal
from attendax.legible import did_you_mean

from ..adapters.implementation import PROTOCOL_TRAITS
from ..against.forms import BY_LAW, Form, Option
from ..against.options import LAYOUTS, OPTIONS, REACH, SIDES, WIDE, first_kind
from ..against.remote import PERHAPS, Function
from ..conventions.table import TABLE, in_full, is_value, known_values
from .contract import Contract

CALL_KEYS = (
    "arrays", "layout", "order", "pack", "returns", "first_of_several", "grouped_heads", "heads", "equal_lengths",
    "key_layouts",
    "queries_at_most_keys", "equal_lengths_with", "whole_axes_of", "lacks",
)  # fmt: skip
LACKS = "lacks"  # traits that are not offered: no call finds them out
OF_WINDOWS = {"reach": tuple(REACH), "side": tuple(SIDES)}  # axes that may have these values
OF_CALL = {"arrays": ("jax", "numpy", "torch"), "layout": LAYOUTS}
PINNED_AXES = (*TABLE, "always", "large", "empty_lse", "mask_word", "reach", "side")
PINNED_OPTIONS = {*OPTIONS, "query_segment_ids", "key_segment_ids"} - {"segments"}
TABLES = ("called", "keywords", "required", "means", "unread")


def read(file: str) -> dict[str, dict[str, Any]]:
    """The tables of a contract file; raises Refusal with the line and what is allowed there."""
    try:
        with open(file, encoding="utf-8") as lines:
            text = lines.read()
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"--contract {file}: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}") from error
    except tomllib.TOMLDecodeError as error:
        raise Refusal(f"--contract {file}: {error}") from error
    found.pop("function", None)
    for title, table in found.items():
        _allow(f"--contract {file}", text, title, title, TABLES, "a table")
        if not isinstance(table, dict):
            raise Refusal(f"--contract {file}{_line(text, title)}: {title} is a table, [{title}]")
        for key, value in table.items():
            _check(f"--contract {file}", text, title, key, value)
    return {title: dict(found.get(title, {})) for title in TABLES}


def expected(means: Mapping[str, str]) -> dict[str, str]:
    """The values of ``--expect``, by axis; a name of ``check`` stands for its value. Raises Refusal if one is none."""
    for axis, value in (found := in_full(means)).items():
        _check("--expect", "", "means", axis, value)
    return found


def _check(where: str, text: str, title: str, key: str, value: Any) -> None:
    if title == "called":
        _allow(where, text, key, key, CALL_KEYS, "a key of [called]")
        for x in value if key == LACKS else ():
            _allow(where, text, key, x, PROTOCOL_TRAITS, "a trait")
        if key in OF_CALL:
            _allow(where, text, key, value, OF_CALL[key], f"a value of {key}")
    elif title == "keywords":
        _allow(where, text, key, str(value).partition(":")[0], sorted(PINNED_OPTIONS), "an option")
    elif title == "means":
        _allow(where, text, key, key, PINNED_AXES, "an axis")
        if key in OF_WINDOWS:
            _allow(where, text, key, value, OF_WINDOWS[key], f"a value of {key}")
        elif key in TABLE and not is_value(key, str(value)):
            _allow(where, text, key, value, known_values(key), f"a value of {key}")


def _allow(where: str, text: str, key: str, value: Any, allowed: Any, what: str) -> None:
    if value not in allowed:
        near = did_you_mean(str(value), list(allowed))
        raise Refusal(f"{where}{_line(text, key)}: {value!r} is not {what}; allowed: {', '.join(allowed)}{near}")


def _line(text: str, key: str) -> str:
    """The number of the line that has a key."""
    pattern = re.compile(rf"\s*\[?[\"']?{re.escape(key)}[\"']?\s*[=\]]")
    found = (number for number, line in enumerate(text.splitlines(), start=1) if pattern.match(line))
    return f", line {number}" if (number := next(found, 0)) else ""


def differences(contract: Contract, pinned: Mapping[str, Mapping[str, Any]], file: str) -> Iterator[str]:
    """Each difference of a function from its contract file, in words. An axis that the file leaves out is the law's."""
    found = contract.tables()
    for title in ("called", "keywords", "required", "means"):
        mine, theirs = found[title], pinned[title]
        for key in theirs.keys() - {LACKS} if title != "means" else dict.fromkeys((*theirs, *mine)):
            one, other = (table.get(key, _absent(title)) for table in (theirs, mine))
            if one != other and str(one) != str(other):
                yield f"{key} is {other!r}, and {one!r} in {file}"


def options_of(pinned: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The option that each keyword of a file is; the two of segment ids are one."""
    found = {name: str(said).partition(":")[0] for name, said in pinned.get("keywords", {}).items()}
    return {name: "segments" if ours.endswith("_segment_ids") else ours for name, ours in found.items()}


def stated(fn: Function, pinned: Mapping[str, Mapping[str, Any]]) -> Contract:
    """The contract that a file states, of a function whose calls do not tell it."""
    called, means = pinned["called"], pinned["means"]
    keywords = dict(pinned["keywords"]) or {name: name for name in fn.names if name in PINNED_OPTIONS}
    options, segments = dict[str, Option](), dict[str, str]()
    for name, said in keywords.items():
        ours, _, kind = str(said).partition(": ")
        if ours.endswith("_segment_ids"):
            segments[ours] = name
        else:
            options[ours] = Option(name, kind or WIDE.get(ours) or first_kind(ours))
    if segments:
        options["segments"] = Option(segments.get("query_segment_ids", ""), segments.get("key_segment_ids", ""))
    if means.get("mask") == "True drops" and "mask" in options:
        options["mask"] = Option(options["mask"].name, options["mask"].form.replace("True attends", "True drops"))
    how = {axis: x for axis, x in means.items() if axis in BY_LAW}
    form = Form(
        fn.path, called.get("arrays") or fn.kind(), called["layout"], called.get("order", Form().order),
        called.get("pack", ""), tuple(called.get("key_layouts", ())), called.get("returns", ""),
        fn.container() or PERHAPS,
        called.get("first_of_several", False), options, {**BY_LAW, **how}, {}, called.get("grouped_heads", False),
        called.get("heads", ""), {**fn.meant, **pinned["required"]}, fn.by_name, fn.by_position,
        means.get("mask_word", ""), fn.defaults,
    )  # fmt: skip
    square, short = called.get("equal_lengths", False), called.get("queries_at_most_keys", False)
    alike, names = tuple(called.get("equal_lengths_with", ())), tuple(fn.names)
    whole = tuple(called.get("whole_axes_of", ()))
    return Contract(fn.path, form, {}, square=square, short=short, alike=alike, whole=whole, names=names)


def _absent(title: str) -> str:
    return "as the law has it" if title == "means" else "absent"
