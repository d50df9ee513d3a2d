"""Bytes sent between devices and FLOPs of a compiled program, read from its HLO text (L16)."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from jax.stages import Compiled

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
BITS = re.compile(r"\D*(\d+)")
TYPE = re.compile(r"(\w+)\[([\d,]*)\]")
HEADER = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)")
CALLED = re.compile(r"(?:calls|body|to_apply|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)")


class Collective(NamedTuple):
    """One collective of a compiled program."""

    kind: str  # one of KINDS
    devices: int  # how many exchange with each other
    bytes: int  # what a device receives in one execution, by the algorithm that receives least
    times: int  # how often it is executed; 0 if only the data decide, in a loop without a known end
    always: bool  # whether no condition stands before it


class _Instruction(NamedTuple):
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    def called(self) -> list[str]:
        found = CALLED.findall(self.attributes)
        return [name.strip().lstrip("%") for names in found for name in names.strip("{}").split(",")]


def collectives(compiled: Compiled | str) -> list[Collective]:
    """Those of a compiled program or of its text; of conditions those of every branch."""
    program = _Program(compiled)
    return [_collective(*found, program.devices) for found in program.walk() if _kind(found[0].opcode)]


def bytes_received(compiled: Compiled | str) -> int:
    """Bytes that a device receives in one run of a compiled program, but for what a condition decides."""
    return sum(found.bytes * found.times for found in collectives(compiled) if found.always)


def flops(compiled: Compiled | str) -> int:
    """FLOPs of the matrix products of one device, in loops of known length and in all branches of a condition."""
    program = _Program(compiled)
    return sum(times * _of_product(found, types) for found, types, times, _ in program.walk() if found.opcode == "dot")


class _Program:
    """The instructions of a program's text, by computation."""

    def __init__(self, compiled: Compiled | str) -> None:
        text = compiled if isinstance(compiled, str) else str(compiled.as_text())
        self.computations: dict[str, dict[str, _Instruction]] = {}
        for line in text.splitlines():
            if header := HEADER.match(line):
                name = header[1]
                self.computations[name] = {}
                if line.startswith("ENTRY"):
                    self.entry = name
            elif self.computations and (found := INSTRUCTION.match(line)):
                self.computations[name][found[1]] = _instruction(found[2])
        head = text[: text.find("\n")]
        counts = (int(n) for n in re.findall(r"(?:num_partitions|replica_count)=(\d+)", head))
        self.devices = math.prod(counts)

    def walk(
        self, name: str | None = None, times: int = 1, always: bool = True
    ) -> Iterator[tuple[_Instruction, dict[str, str], int, bool]]:
        """Each instruction with the types of its computation, how often it runs, and whether it always does."""
        instructions = self.computations[name or self.entry]
        types = {name: instruction.type for name, instruction in instructions.items()}
        for instruction in instructions.values():
            yield instruction, types, times, always
            is_certain = always and instruction.opcode != "conditional"
            trips = _trips(instruction) if instruction.opcode == "while" else 1
            for called in instruction.called():
                if not _kind(instruction.opcode) and called in self.computations:
                    yield from self.walk(called, times * trips, is_certain)


def _trips(loop: _Instruction) -> int:
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    return int(known[1]) if known else 0


def _instruction(text: str) -> _Instruction:
    """Parse ``type opcode(operands), attributes``; the type of a tuple has parentheses of its own."""
    text = re.sub(r"/\*.*?\*/", "", text)
    end = _closing(text) + 1 if text.startswith("(") else text.index(" ")
    rest = text[end:].lstrip()
    start = rest.index("(")
    stop = start + _closing(rest[start:])
    operands = (part.split()[-1].lstrip("%") for part in rest[start + 1 : stop].split(", ") if part)
    return _Instruction(text[:end], rest[:start], tuple(operands), rest[stop + 1 :])


def _closing(text: str) -> int:
    """The index of the parenthesis that closes the first one of a text."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return place
    raise ValueError(f"No parenthesis closes: {text!r}")


def _kind(opcode: str) -> str | None:
    """The kind of a collective; of two halves, the first is counted."""
    opcode = opcode.removesuffix("-start")
    return opcode if opcode in KINDS else None


def _collective(instruction: _Instruction, types: dict[str, str], times: int, always: bool, devices: int) -> Collective:
    kind = str(_kind(instruction.opcode))
    given, group = sum(_bytes(types[name]) for name in instruction.operands), _group(instruction.attributes, devices)
    received = {
        "all-gather": given * (group - 1),
        "all-reduce": 2 * given * (group - 1) // group,
        "reduce-scatter": given * (group - 1) // group,
        "all-to-all": given * (group - 1) // group,
        "collective-permute": given,
    }
    return Collective(kind, group, received[kind], times, always)


def _group(attributes: str, devices: int) -> int:
    """The number of devices that exchange with each other, from any of the ways in which XLA writes groups."""
    if "source_target_pairs={" in attributes:
        pairs = attributes.partition("source_target_pairs=")[2].partition("}}")[0]
        return pairs.count("{") - 1
    groups = attributes.partition("replica_groups=")[2]
    if listed := re.match(r"\{\{([\d,]*)\}", groups):
        return len(listed[1].split(","))
    if shape := re.match(r"\[\d+,(\d+)\]", groups):
        return int(shape[1])
    if mesh := re.match(r"(?:@?\w+)?\[(.*?)\]\s*\{(.*?)\}", groups):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        return math.prod(sizes[name] for name in re.findall(r"'(\w+)'", mesh[2]))
    return devices


def _bytes(type_: str) -> int:
    """The bytes of all arrays of a type."""
    return sum(_size(dims) * max(1, _bits(name) // 8) for name, dims in TYPE.findall(type_))


def _size(dims: str) -> int:
    return math.prod(int(n) for n in dims.split(",") if n)


def _bits(name: str) -> int:
    found = BITS.match(name)
    return int(found[1]) if found else 8


def _of_product(product: _Instruction, types: dict[str, str]) -> int:
    """Two for each entry of the result and each number it is summed over."""
    (_, result), (_, left) = TYPE.findall(product.type)[0], TYPE.findall(types[product.operands[0]])[0]
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", product.attributes)
    sizes = left.split(",")
    return (
        2 * _size(result) * math.prod(int(sizes[int(k)]) for k in (contracted[1] if contracted else "").split(",") if k)
    )
