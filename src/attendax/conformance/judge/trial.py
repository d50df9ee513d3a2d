"""One implementation on one case: its inputs, what it gives, what is right, and how far off it may be."""

import itertools
from collections.abc import Iterator

import numpy as np

from ..adapters.implementation import Implementation
from ..cases.case import Case, Inputs, Leaves
from ..cases.how import How
from ..conventions import right
from ..conventions.formula import by_rules, is_given, is_instead
from ..conventions.table import ASKS, IN_PLACE, SEES_LATER
from ..conventions.values import LAW, MEASURED, Conventions, law
from ..worker.calling import call
from ..worker.errors import NoNumbers
from .comparing import Tolerance, largest, scale_of
from .tolerances import MOST_EFFORT, all_of, tolerances

CAUSAL_CALLS = {  # of a function that is causal without being asked
    "causal": "is_causal=True", "causal to the end": "is_causal=True, offset=np.full(B, S - T)",
}  # fmt: skip
SEEING_AXES = ("causal", "window", "key_lengths")  # axes that say which keys a query sees, beside that of pairs


class Trial:
    """One implementation on one case."""

    def __init__(self, implementation: Implementation, case: Case, how: How | None = None) -> None:
        """Make the inputs."""
        self.implementation, self.case, self.how = implementation, case, how or How()
        self.dtype = case.dtype or self.how.dtype
        self.inputs = case.inputs(self.how.seed, self.dtype)
        self.got: Leaves = {}  # what a call gave, for a diagnosis
        self.again: Leaves | None = None  # and what the same call gave another time
        self.wrote: list[str] = []  # the arrays that calls wrote to
        self.loose: dict[str, Tolerance] = {}  # what tells reasons apart is larger, for a diagnosis

    def run(self, inputs: Inputs | None = None, direction: str | None = None) -> Leaves:
        """Results of the implementation: leaves of NumPy arrays."""
        inputs, direction = inputs or self.inputs, direction or self.case.direction
        found = call(self.implementation, inputs, direction, self.wrote)
        if self.case.judge not in ("value", "unwritten") and direction in ("forward", "eager"):
            query, value = inputs.arrays["query"], inputs.arrays["value"]
            shapes = {"out": query.shape[:-1] + value.shape[-1:], "lse": query.shape[:-1]}
            for leaf in ("out", "lse") if "return_lse" in inputs.options else ("out",):
                if leaf not in found:
                    raise NoNumbers(leaf, f"gives no {leaf}")
                if found[leaf].shape != shapes[leaf]:
                    raise NoNumbers(leaf, f"{leaf} has shape {found[leaf].shape}, expected {shapes[leaf]}")
        return found

    def both(self) -> tuple[Leaves, Leaves]:
        """Right results, and those of the implementation.

        A function in this process may write to the inputs, so the right results come first. One in another must not
        find it in the memory of this one, so there it comes last.
        """
        if self.implementation.elsewhere:
            got = self.run()
            return self.expected(), got
        return self.expected(), self.run()

    def changed(self) -> Inputs:
        """The inputs after the lines that change them."""
        return self.case.inputs(self.how.seed, self.dtype, changed=True)

    def meant(self, inputs: Inputs | None = None) -> Inputs:
        """The inputs as the law says what declared conventions mean by them: with a mask, lengths, and a scale."""
        inputs = inputs or self.inputs
        options, (T, S) = inputs.options, (inputs.arrays[name].shape[-2] for name in ("query", "key"))
        counts, left_out = IN_PLACE.get(self.declared.value("joins"), ("", ""))
        if left_out in options and is_given(options.get(counts)):
            options = {name: x for name, x in options.items() if name != left_out}
        conventions = self.expressed(inputs._replace(options=options))
        if "key_lengths" in dict(conventions.off):
            options = options | {"key_lengths": np.maximum(options["key_lengths"], 1)}
        if "scale" in dict(conventions.off):
            sizes = dict(zip("NTD", (1, *inputs.arrays["query"].shape)[-3:], strict=True))
            sizes |= dict(zip("SV", inputs.arrays["value"].shape[-2:], strict=True)) | {"np": np}
            options = options | {"scale": eval(conventions.line("scale").text, sizes)}
        given = inputs.arrays | options
        if conventions.off and ((seen := by_rules(conventions, given, T, S)) != by_rules(LAW, given, T, S)).any():
            rest = {k: x for k, x in options.items() if k not in ("is_causal", "window")}
            options = rest | {"mask": seen & rest.get("mask", True)}
        return inputs if options is inputs.options else inputs._replace(options=options)

    @property
    def declared(self) -> Conventions:
        """The conventions by which the function is declared to compute the call."""
        conventions = Conventions().but(**self.implementation.means)
        return conventions if self.inputs.options.get("offset") is None else conventions.but(causal=law("causal"))

    def expressed(self, inputs: Inputs) -> Conventions:
        """Those of them that options of the law express: of those that are given, and of a scale that is not."""
        given = {axis for axis in SEEING_AXES if is_given(inputs.options.get(*ASKS[axis]))} | {"pairs"}
        given |= {"scale"} - inputs.options.keys()
        given |= {"joins"} if self.declared.value("pairs") != law("pairs") else set()
        return Conventions(tuple(x for x in self.declared.off if x[0] in given))

    @property
    def computing(self) -> Conventions:
        """The others, except what a query without any key gets, unless each call has such a query."""
        always = self.declared.value("pairs") != law("pairs")
        expressed: tuple[str, ...] = (*SEEING_AXES, "pairs", "scale", "joins" if always else "empty")
        expressed += ("given_scale",) * ("scale" not in self.inputs.options)
        return Conventions(tuple(x for x in self.declared.off if x[0] not in expressed))

    def by_convention(self, empty: str = "") -> Leaves:
        """Right results by all that is declared; a query without any key may get something else."""
        empty = empty or self.declared.value("empty")
        conventions = self.computing.but(empty=empty)
        return self.expected() if empty in (law("empty"), SEES_LATER) else self.by(conventions, inputs=self.meant())

    def by(self, conventions: Conventions, saved: Conventions | None = None, inputs: Inputs | None = None) -> Leaves:
        """Results by conventions; the lse of a row without any key is what was got, where only L5 says it."""
        found = right.by_conventions(inputs or self.inputs, self.case.direction, conventions, saved)
        got = self.got.get("lse", np.zeros(0))
        if conventions.value("empty") != law("empty") and "lse" in found and got.shape == found["lse"].shape:
            found["lse"] = np.where(found["lse"] == -np.inf, got, found["lse"])
        return found

    def expected(self, inputs: Inputs | None = None) -> Leaves:
        """Right results, in float64, with causal as it is declared.

        That of the case itself is kept, for it is the same for every implementation that declares the same.
        """
        meant = self.meant(inputs)
        of_case = all_of(self.case, self.how.seed, self.dtype)
        differs = self.computing.off, meant is self.inputs or self.expressed(self.inputs).off
        key = "" if inputs else f"{of_case} {differs}"
        if key in _expected:
            return _expected[key]
        found = self._right(meant, inputs or self.inputs)
        if key and _size_of(found) > LARGE_BYTES:
            for other in [k for k, x in _expected.items() if _size_of(x) > LARGE_BYTES]:
                del _expected[other]
        return _expected.setdefault(key, found) if key else found

    def _right(self, meant: Inputs, inputs: Inputs, **other: str) -> Leaves:
        """Right results; with other conventions where they are given."""
        own, direction = self.computing.but(**other), self.case.direction
        if own.value("empty") == SEES_LATER:  # keys that causal hides are not those of a mask
            meant, own = inputs, self.declared.but(**other)
        with np.errstate(all="ignore"):
            return right.by_conventions(meant, direction, own) if own.off else right.leaves(meant, direction)

    def _off_by_unknown(self) -> Iterator[Leaves]:
        """Errors that a scale which was measured, the eps of a norm, and the rounding of ALiBi and RoPE may cause."""
        meant, value, whole = self.meant(), self.declared.value, self.expected()
        if self.declared.is_measured("scale") and "scale" not in self.inputs.options:
            scale = {"scale": meant.options["scale"] * (1 + MEASURED)}
            moved = (x._replace(options=x.options | scale) for x in (meant, self.inputs))
            found = self._right(*moved, given_scale=law("given_scale"))
            yield {leaf: x - whole[leaf] for leaf, x in found.items()}
        for axis, what in (("norm", "eps"), ("alibi", "rounded"), ("rotary", "rounded")):
            if value(axis) != law(axis):
                found = self._right(meant, self.inputs, **{axis: f"{value(axis)}, {what}"})
                yield {leaf: x - whole[leaf] for leaf, x in found.items()}

    def tolerances(self, wanted: Leaves, *, effort: int = MOST_EFFORT) -> dict[str, Tolerance]:
        """The largest error of each leaf, as ``tolerances.tolerances`` has it, and what is unknown may add."""
        in_jax, case = self.implementation.arrays == "jax", self.case
        if "scale" in dict(self.expressed(self.inputs).off):  # larger scores are rounded more coarsely
            scale = f"scale={self.declared.line('scale').text}"
            case = case._replace(call=", ".join(filter(None, (case.call, scale))))
        always = CAUSAL_CALLS.get(self.declared.value("pairs"))
        given = self.inputs.options | self.inputs.arrays
        if always and not {"is_causal", "offset"} & given.keys() and not is_instead(self.declared, given):
            case = case._replace(call=", ".join(filter(None, (case.call, always))))  # few keys are rounded otherwise
        found = tolerances(case, self.how, wanted, in_jax=in_jax, effort=effort)
        tree = max(map(largest, wanted.values()), default=0.0)
        unknown = self._off_by_unknown() if effort >= 0 else ()
        for leaf, off in itertools.chain.from_iterable(map(dict.items, unknown)):
            beside = largest(off) / scale_of(wanted[leaf], found[leaf], tree)
            found[leaf] = found[leaf]._replace(allowed=found[leaf].allowed + beside)
        return found


LARGE_BYTES = 2**22  # bytes; of results beyond it the last are kept
_expected: dict[str, Leaves] = {}


def _size_of(leaves: Leaves) -> int:
    return sum(x.nbytes for x in leaves.values())
