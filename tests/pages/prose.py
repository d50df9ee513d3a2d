"""The rules of how this project writes, as far as they can be counted: on pages, help, docstrings and messages.

``python tests/pages/prose.py FILE...`` prints a line for each rule that a file of Python or a page breaks.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

LONGEST = 30  # words of a sentence
PHRASES = {  # what a text must not have, and what to write instead
    "also, before the verb": r", too\b(?= *(?:[.,;:)]|$))",
    "not a, not any": r"(?<!here )\b(?:is|are|was|were) no\b(?! longer)",
    "if there is": r"\bwhere there (?:is|are)\b",
    "except": r"\bbut for\b",
    "silently": r"\bwithout a word\b",
    "the English compound, such as a JAX function": r"\b(?:function|model|array|module|tensor)s? of"
    r" (?:JAX|torch|PyTorch|NumPy|ONNX|keras)\b",
    "key lengths": r"\blengths of keys\b",
    "nothing, or in fact": r"\bin truth\b",
}
FENCE = re.compile(r"^ *(`{3,}|:{3,}(?=\S)|~{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"\n\s*\n|\n(?= *(?:[-*>|+]|\d+\.) )")
SENTENCE = re.compile(r"(?<=[.:!?])[\])*\"']*\s+(?=[^a-z]|attendax |torch |jax|flax|keras |onnx)|(?<=[:;])\s+|\s*\|\s*")
VAGUE = re.compile(r"\**(What|Who|Which|The same)\b(?!.*\?$)")
OPENS_NO_DOCSTRING = re.compile(  # neither a noun nor a verb
    r"(What|Who|Which|The same|Whether|How|Why|Where|When|If|As|In|Of|On|By|For|With|Without|From|To|At|And|So|Not)"
    r"\b(?!-)"
)


def of_page(text: str) -> Iterator[str]:
    """The sentences of a page, with its lists and the cells of its tables, without its code, formulas and headings."""
    text = re.sub(r"<!-- measured: \w+ -->\n\|.*?<!-- end -->", "", text, flags=re.DOTALL)  # names of rows are data
    text = re.sub(r"<!--.*?-->|^---\n.*?^---$|\$\$.*?\$\$", "", FENCE.sub("\n\n", text), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?:#+ .*|\(.*\)=|:::.*|> ?)", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "`x`", re.sub(r"\]\([^)]*\)", "]", text))
    for block in BLOCK.split(text):
        yield from split(" ".join(re.sub(r"^\s*(?:[-*+>|]|\d+\.)? ?", "", block).split()))


def split(text: str) -> Iterator[str]:
    """The sentences of a paragraph or of a row of a table."""
    yield from (sentence.strip() for sentence in SENTENCE.split(text) if sentence.strip())


def docstrings(source: str) -> Iterator[str]:
    """Those of a file: of itself, its classes and its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
            yield text


def of_docstring(text: str) -> Iterator[str]:
    """Its sentences; each entry of Args, Returns or Raises is a block, examples and formulas are left out."""
    text = re.sub(r"^ *>>> .*?(?=\n\s*\n|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"::\n\n(?: +.*\n|\n)+", "\n\n", text)
    for block in re.split(r"\n\s*\n|\n(?=(?: {4})?[\w*, ]+(?: \([^)]*\))?: )|\n(?= *(?:[-*]|\d+\.) )", text):
        yield from split(" ".join(re.sub(r"`+[^`]*`+", "x", block).split()))


def messages(source: str) -> Iterator[str]:
    """The texts that a file raises or warns of, with x for each value that they show."""
    for node in ast.walk(ast.parse(source)):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if isinstance(node, ast.Raise) or name in ("warn", "Refusal"):
            for argument in call.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value
                elif isinstance(argument, ast.JoinedStr):
                    parts = (x.value if isinstance(x, ast.Constant) else "x" for x in argument.values)
                    yield "".join(map(str, parts))


def wrong(sentences: Iterable[str]) -> list[str]:
    """A line for each rule that a sentence breaks."""
    found = []
    for sentence in sentences:
        if len(sentence.split()) > LONGEST:
            found.append(f"{len(sentence.split())} words: {sentence}")
        if VAGUE.match(sentence) and sentence[-1] in ".:;":
            found.append(f"begin with a noun: {sentence}")
        found += [f"{instead}: {sentence}" for instead, phrase in PHRASES.items() if re.search(phrase, sentence)]
    return found


def wrong_in_file(path: Path) -> list[str]:
    """A line for each rule that a docstring or a message of a file breaks."""
    source = path.read_text("utf-8")
    found = [f"begin with a noun or a verb: {text}" for text in docstrings(source) if OPENS_NO_DOCSTRING.match(text)]
    for text in docstrings(source):
        found += wrong(of_docstring(text))
    for text in messages(source):
        found += wrong(list(split(" ".join(text.split()))))
    return found


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        found = wrong_in_file(path) if path.suffix == ".py" else wrong(of_page(path.read_text("utf-8")))
        for line in found:
            print(f"{path}: {line}")
