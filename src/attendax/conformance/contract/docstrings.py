"""Conventions that the name, the signature and the docstring of a function state."""

import contextlib
import io
import re
import tokenize
from collections.abc import Collection

NAMED = {"always": "causal|autoregressive", "alibi": "alibi"}  # words of a name or a docstring that mean the axis
TRIANGLE = r"causal|autoregressive|\btri[lu]?(?=\()|look_?ahead"  # in a source
MEANT = {  # words of a docstring or a signature by which an unusual value is meant: by its axis, or its first word too
    "norm": "qk?[-_ ]?norm|(rms|l2)[-_ ]?norm|cosine",
    "scale 1": r"unscaled|pre-?scaled|already (scaled|multiplied|divided)"
    r"|(\b(not|no|without)|n't) (scal(ed|ing)|divided by|1 ?/ ?sqrt)|scal(e|ing)\b[^.]*\b(folded|absorbed|part of)\b",
    "joins mask": r"\b(no mask\b|mask is None)[^.]*causal|\bmask\b[^.]*(instead of|in place of|replaces|overrides)",
    "heads": r"\bh\w*\s*(%|mod)\s*\w+|\bhead\w*\b[^.]*\bmodulo\b",
    "weights sigmoid": "sigmoid", "weights ReLU": "relu", "weights top": "top[-_ ]?k",
    "weights softmax": r"softmax[-_ ]?(1|one)\b|off[- ]by[- ]one",
}  # fmt: skip
OTHER_FORMULAS = (  # words of a source whose formula the table may lack
    r"(l2|qk|rms|layer)_?norm|\.normalize\(|cosine|relu|sigmoid|\belu\(|top_?k|entmax|sparsemax|linear attention"
)
NOT_CAUSAL = r"(\bnon|\bnot|\bno|without)[-_ ]*(a )?causal|bidirectional|causal[^.]* not\b"
ENTRY = re.compile(r"\n\s*\n|\.\s*\n|\n(?=\s*(?!True|False|[01]\b)\w+\s*[:(])|\n(?=\s*\w+\n)")  # between the parameters
VALUE = re.compile(
    r"\b(True|False|(?:[01]|ones|zeros?)(?=\s*(?:[=:→]|->|(?:means?|for|where|marks?|on|at|is|are|to|if)\b)))", re.I
)
SHOWS = r"attend|ke(?:ep|pt)|(?<!in)valid|real\b|visible|seen?\b|allow|participat|takes? part"
HIDES = r"pad(?!ding[_ ]mask)|ignor|masked|mask out|to mask|hid(?:e|den)|exclud|drop|block|invalid|forbid"
ADDED = re.compile(r"-\s?inf|-1e|additive|\badded", re.I)
NOT = r"(?:\bnot?|\bnever|n't|cannot)\W+(?:\w+\W+){0,2}"

REACHES = {  # of a window with a name
    "w - 1": r"\b{0}\W?\s*-\s*1\b|\b{0}\b[^.]*\b(?:itself|own \w+|current \w+) (?:is |are )?(?:included|counted)",
    "w": r"\b{0}\W?\s+(?:\w+ )?(?:before|behind|back|to (?:the|its) left|(?:on|to|in) (?:each|either|both|every))\b",
    "w // 2": r"\b{0}\W?\s*(?://|/)\s*2\b|\bhalf (?:of )?(?:the )?\W?{0}\b",
}


def stated(axis: str, value: str, documentation: str, names: Collection[str], source: str = "") -> str:
    """Words for an unusual value that the name, the signature or the docstring of a function says; else nothing.

    ``documentation`` is the name and, from the second line on, the docstring; ``names`` are the parameters. The
    ``source`` tells whether it is meant to be causal.
    """
    name, _, docstring = documentation.partition("\n")
    words = NAMED.get(axis) or MEANT.get(f"{axis} {value.split()[0].strip(',')}") or MEANT.get(axis, "")
    named = axis in NAMED or (axis != "scale" and re.search(words, name, re.IGNORECASE))
    place, text = ("name", f"{name} {docstring}") if named else ("signature", f"{' '.join(names)} {docstring}")
    found = words and re.search(words, text, re.IGNORECASE)
    denied = axis == "always" and re.search(NOT_CAUSAL, text, re.IGNORECASE)
    if denied:
        return ""
    written = re.search(TRIANGLE, source, re.IGNORECASE) if axis == "always" else None
    return f"its {place} or docstring says {found[0]}" if found else f"its source says {written[0]}" if written else ""


def says_newest(docstring: str) -> bool:
    """Tell whether queries are the newest tokens of a cache of keys, by a docstring."""
    newest = r"\b(newest|most recent|latest)\b[^.]*\btokens?\b|\bnew tokens?\b[^.]*\bcache"
    return bool(re.search(r"\bcache", docstring, re.I) and re.search(newest, docstring, re.I))


def says_hides(docstring: str, name: str) -> bool | None:
    """Tell whether a docstring says that True in a mask hides a key; None if it does not say, or says both."""
    said, described = set(), rf"\b{re.escape(name)}`*\s*(?:`*[:(\[=]|is\b|True\b)|^\s*{re.escape(name)}\n"
    for entry in (x for x in ENTRY.split(docstring) if re.search(described, x)):
        numbers = not ADDED.search(entry)  # and no bias, of which 0 changes nothing
        values = [x for x in VALUE.finditer(entry) if numbers or x[0] in ("True", "False")]
        ends = [x.start() for x in values[1:]] + [len(entry)] * bool(values)
        for value, end in zip(values, ends, strict=True):
            parts = re.split(r"[;()\]]|\.\s", entry[value.end() : end])[0].split(",")
            clause = next((x for x in parts if re.search(f"{SHOWS}|{HIDES}", x, re.I)), "")
            is_true = value[1].lower() in ("true", "1", "ones")
            denied = re.search(f"{NOT}(?:(?P<shows>{SHOWS})|{HIDES})", clause, re.I)
            hides = bool(denied["shows"] if denied else re.search(HIDES, clause, re.I))
            shows = not hides if denied else bool(re.search(SHOWS, clause, re.I))
            said |= {x for x, meant in ((is_true, hides), (not is_true, shows)) if meant}
    return said.pop() if len(said) == 1 else None


def says_reach(docstring: str, name: str) -> str:
    """The reach of a window of ``w`` keys by a docstring, in ``w``; empty if it does not say. It may say "name=W"."""
    letter = re.search(rf"\b{re.escape(name)}\s*=\s*([A-Za-z])\b", docstring)
    name = letter[1] if letter else name
    found = [x for x, words in REACHES.items() if re.search(words.format(re.escape(name)), docstring, re.I)]
    return found[0] if len(found) == 1 else ""


def comments(source: str) -> str:
    """The comments before a function, in its signature, each with the name of its parameter, and before its code."""
    found, depth, place = list[str](), 0, "before"
    with contextlib.suppress(tokenize.TokenError, IndentationError):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
            if token.type == tokenize.COMMENT:
                name = re.match(r"[\s*]*(\w+)", token.line)
                entry = f"\n{name[1]}: " if place == "signature" and name else ""
                found.append(entry + token.string.lstrip("# "))
            elif place == "before" and token.string == "def":
                place = "signature"
            elif place == "signature" and token.string == ":" and not depth:
                place = "code"
            elif place == "code" and token.type in (tokenize.NAME, tokenize.OP):
                break
    return "\n".join(found)
