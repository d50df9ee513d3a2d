"""The launches of a call: which kernels, over which arrays, in tiles of which size.

The size of a tile depends on the widths, the dtype and the GPU alone, never on the number of queries, keys or texts:
so a row is added up in one order, whatever else is in the call (L15).
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = (64, 128, 256)  # of queries, keys and values; others are padded with zeros
STEPS = (64, 128, 32)  # in float32, numbers of a row in one product: for all 256 there are not enough registers
TARGETS = {  # and the capabilities of GPUs that run it: from 9.0 on its own alone
    "sm_80": ((8, 0), (8, 6), (8, 7), (8, 9)),
    "sm_90": ((9, 0),),
    "sm_100": ((10, 0),),
    "sm_120": ((12, 0),),
}
INT32 = ("seen", "query_ids", "key_ids", "reach", "options", "places", "bits", "words")
INT8 = ("marked_keys", "marked")
FLOAT32 = ("factors", "alibi", "table", "bias", "dbias", "row_max", "row_sum", "lse", "dlse", "delta", "shift", "share",
           "sums", "sums_of_rows")  # fmt: skip
PART = 8192  # keys are added in parts that begin at multiples of it, a multiple of each tile of keys
MOST_JOINED = 64  # queries of a tile: there are not enough registers for two parts of more
FEW = 128  # blocks: with no more of them the parts are added at a time, and not one after the other


class Tiles(NamedTuple):
    """The size of a tile, the warps that compute it, and how many tiles are loaded at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
TILES: dict[
    tuple[str, int], dict[str, tuple[Tiles, ...]]
] = {  # by target and bytes of a number, and by kernel: one for each of the widths
    ("sm_80", 2): {
        "forward": (Tiles(128, 64, 8, 2), Tiles(128, 32, 8, 2), Tiles(64, 32, 8, 2)),
        "gradient_of_query": (Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 2), Tiles(32, 32, 8, 2)),
        "gradients_of_keys": (Tiles(64, 64, 8, 2), Tiles(32, 64, 8, 2), Tiles(32, 32, 8, 1)),
    },
    ("sm_80", 4): {
        "forward": (Tiles(32, 32, 4, 2), Tiles(32, 16, 8, 2), Tiles(32, 16, 8, 2)),
        "gradient_of_query": (Tiles(32, 32, 8, 2), Tiles(16, 32, 8, 2), Tiles(32, 32, 8, 2)),
        "gradients_of_keys": (Tiles(32, 32, 8, 2), Tiles(16, 16, 8, 2), Tiles(32, 16, 8, 2)),
    },
    ("sm_90", 2): {
        "forward": (Tiles(128, 64, 4, 3), Tiles(128, 128, 8, 2), Tiles(128, 32, 8, 2)),
        "gradient_of_query": (Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(32, 32, 8, 2)),
        "gradients_of_keys": (Tiles(64, 128, 8, 2), Tiles(32, 64, 8, 3), Tiles(32, 32, 8, 2)),
    },
    ("sm_90", 4): {
        "forward": (Tiles(128, 32, 8, 2), Tiles(32, 16, 8, 2), Tiles(32, 16, 8, 2)),
        "gradient_of_query": (Tiles(64, 32, 8, 2), Tiles(16, 32, 8, 2), Tiles(32, 32, 8, 2)),
        "gradients_of_keys": (Tiles(32, 32, 8, 2), Tiles(16, 16, 8, 2), Tiles(32, 16, 8, 2)),
    },
}
TILES["sm_100", 2] = TILES["sm_90", 2] | {
    "forward": (Tiles(128, 64, 8, 3), Tiles(128, 128, 8, 2), Tiles(128, 32, 8, 2)),
    "gradients_of_keys": (Tiles(64, 64, 8, 2), Tiles(32, 64, 8, 3), Tiles(32, 32, 8, 2)),
}
TILES["sm_100", 4] = TILES["sm_90", 4] | {"forward": (Tiles(64, 64, 8, 2), Tiles(32, 16, 8, 2), Tiles(32, 16, 8, 2))}
TILES["sm_120", 2] = TILES["sm_80", 2] | {
    "gradient_of_query": (Tiles(64, 64, 8, 2), Tiles(128, 32, 8, 2), Tiles(32, 32, 8, 2)),
}
TILES["sm_120", 4] = TILES["sm_80", 4]

COMMON: dict[int, dict[str, tuple[Tiles, ...]]] = {  # of modified scores, by bytes of a number
    2: {
        "forward": (Tiles(64, 32, 8, 2), Tiles(64, 32, 8, 2), Tiles(32, 32, 8, 2)),
        "gradient_of_query": (Tiles(16, 32, 4, 2), Tiles(16, 32, 4, 2), Tiles(16, 32, 8, 2)),
        "gradients_of_keys": (Tiles(16, 16, 4, 2), Tiles(16, 16, 4, 2), Tiles(16, 16, 8, 2)),
        "gradient_of_bias": (Tiles(32, 32, 8, 2), Tiles(16, 32, 8, 2), Tiles(16, 32, 8, 2)),
    },
    4: {
        "forward": (Tiles(32, 32, 8, 2), Tiles(32, 16, 8, 2), Tiles(32, 16, 8, 2)),
        "gradient_of_query": (Tiles(16, 32, 8, 2), Tiles(16, 16, 8, 2), Tiles(16, 32, 8, 2)),
        "gradients_of_keys": (Tiles(16, 16, 8, 2), Tiles(16, 16, 8, 2), Tiles(16, 16, 8, 2)),
        "gradient_of_bias": (Tiles(16, 32, 8, 2), Tiles(16, 16, 8, 2), Tiles(16, 16, 8, 2)),
    },
}
TILES_OF_MODIFIED = {(target, size): table for target in TARGETS for size, table in COMMON.items()}
TILES_OF_MODIFIED["sm_100", 2] = COMMON[2] | {
    "forward": (Tiles(64, 32, 8, 2), Tiles(64, 32, 8, 1), Tiles(32, 32, 8, 2))
}


class Launch(NamedTuple):
    """One launch of a kernel: its parameters are arrays, by name, then numbers, then constants."""

    kernel: str
    dtype: str
    blocks: int
    arrays: tuple[str, ...]
    numbers: tuple[int, ...]
    constants: dict[str, int]
    tiles: Tiles

    @property
    def name(self) -> str:
        """The name of the compiled kernel."""
        return "-".join([self.kernel, self.dtype, *map(str, self.constants.values())])

    def type_of(self, array: str) -> str:
        """The dtype of one of its arrays."""
        kinds = ((INT32, "int32"), (INT8, "int8"), (FLOAT32, "float32"))
        return next((dtype for names, dtype in kinds if array in names), self.dtype)


Shapes = dict[str, tuple[tuple[int, ...], str]]  # shape and dtype of each array
OPERANDS = ("query", "key", "value", "factors", "seen", "query_ids", "key_ids")
MODIFIERS = ("options", "alibi", "table", "places", "bias", "bits", "words")
RESULTS = ("row_max", "row_sum", "lse")
ROWS = ("delta", "shift", "share")
SUMS = ("sums", "sums_of_rows")  # of a part of the keys


class LaunchSequence(NamedTuple):
    """Launches one after the other, over arrays that are given, results, and arrays that they alone need."""

    given: tuple[str, ...]
    results: Shapes
    inner: Shapes
    launches: list[Launch]


class Sizes(NamedTuple):
    """The sizes of a call, and the target that it is compiled for."""

    B: int
    N: int
    G: int
    T: int
    S: int
    W: int  # the width of queries, keys and values
    dtype: str
    target: str
    seen_b: bool = False  # whether ``seen`` differs from text to text, and from head to head
    seen_n: bool = False
    ids_b: bool = False
    modified: bool = False  # whether there is more than scores of products and intervals of keys

    @property
    def step(self) -> int:
        """The numbers of a row that are multiplied at a time."""
        return STEPS[WIDTHS.index(self.W)] if self.dtype == "float32" else self.W

    @property
    def given(self) -> tuple[str, ...]:
        """The arrays of a call."""
        return (*OPERANDS, *MODIFIERS) if self.modified else OPERANDS

    @property
    def operands(self) -> tuple[str, ...]:
        """The first arrays of each kernel; those that a call does not have are not read there."""
        return self.given + ("factors",) * (len(OPERANDS) + len(MODIFIERS) - len(self.given))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The first numbers of each kernel."""
        flags = map(int, (self.seen_b, self.seen_n, self.ids_b))
        return self.N, self.N // self.G, self.T, self.S, *flags

    def tiles(self, kernel: str) -> Tiles:
        """The tiles of a kernel."""
        table = TILES_OF_MODIFIED if self.modified else TILES
        return table[self.target, BYTES[self.dtype]][kernel][WIDTHS.index(self.W)]

    def forward(self) -> LaunchSequence:
        """``out``, ``row_max``, ``row_sum``, ``lse``."""
        B, N, G, T, S, W = self[:6]
        tiles = self.tiles("forward")
        of_keys, blocks = -(-S // tiles.keys) * B * G, -(-T // tiles.queries) * B * N
        results: Shapes = {"out": ((B, N, T, W), self.dtype)}
        results |= dict.fromkeys(RESULTS, ((B, N, T, 1), "float32"))
        parts = -(-S // PART)
        apart = blocks <= FEW
        count, slots = (parts if apart else 1), 0 if parts == 1 else parts if apart else 2
        inner: Shapes = {"marked_keys": ((of_keys,), "int8"), "marked": ((blocks * count,), "int8")}
        for name, width in zip(SUMS, (W, 2), strict=True):
            inner[name] = (B, N, slots, T, width) if slots else (1,) * 5, "float32"
        arrays, sums = (*self.operands, "marked_keys", "out", *RESULTS, "marked", *SUMS), (*SUMS, "out", *RESULTS)
        constants = {"W": W, "BLOCK_N": tiles.keys}
        launches = [Launch("mark_keys", self.dtype, of_keys, ("key", "marked_keys"), (S,), constants, tiles)]
        rows = min(tiles.queries, MOST_JOINED)
        for part in range(0, parts, count):
            launches += self._twice("forward", blocks * count, arrays, PART, part, count, slots, min(part, 1))
            if part or count > 1:
                numbers = T, slots, int(part + count == parts)
                constants, of_rows = {"W": W, "BLOCK_M": rows}, -(-T // rows) * B * N
                launches.append(Launch("join_parts", self.dtype, of_rows, sums, numbers, constants, tiles))
        return LaunchSequence(self.given, results, inner, launches)

    def gradients(self, of_keys: bool, of_bias: tuple[bool, ...] | None) -> LaunchSequence:
        """``dquery``; ``dkey`` and ``dvalue``, and ``dbias``, if they are wanted.

        of_bias: which of the axes (B, N, T, S) the bias has; its gradient is summed over the others.
        """
        B, N, G, T, S, W = self[:6]
        tiles = self.tiles("gradients_of_keys")
        blocks, rows = -(-T // self.tiles("gradient_of_query").queries) * B * N, -(-T // tiles.queries)
        results: Shapes = {"dquery": ((B, N, T, W), self.dtype)}
        inner: Shapes = {"marked": ((blocks,), "int8"), "reach": ((B, N, rows, 4), "int32")}
        inner |= dict.fromkeys(ROWS, ((B, N, T, 1), "float32"))
        given = "dout", "dlse", "out", "row_max", "row_sum"
        arrays, numbers = (*given, "seen", *ROWS, "reach"), (N, T, S, int(self.seen_b), int(self.seen_n))
        constants, of_rows = {"W": W, "BLOCK_M": tiles.queries}, (*self.operands, "dout", *ROWS)
        launches = [Launch("prepare_rows", self.dtype, rows * B * N, arrays, numbers, constants, tiles)]
        launches += self._twice("gradient_of_query", blocks, (*of_rows, "dquery", "marked"))
        if of_keys:
            blocks = -(-S // tiles.keys) * B * G
            results |= {"dkey": ((B, G, S, W), self.dtype), "dvalue": ((B, G, S, W), self.dtype)}
            inner["marked_keys"] = (blocks,), "int8"
            more = "reach", "dkey", "dvalue", "marked_keys"
            launches += self._twice("gradients_of_keys", blocks, (*of_rows, *more))
        if of_bias is not None:
            results["dbias"] = tuple(n if x else 1 for n, x in zip((B, N, T, S), of_bias, strict=True)), "float32"
            launches.append(self._gradient_of_bias(of_bias, results["dbias"][0], (*of_rows, "dbias")))
        return LaunchSequence((*self.given, *given), results, inner, launches)

    def _gradient_of_bias(self, axes: tuple[bool, ...], shape: tuple[int, ...], arrays: tuple[str, ...]) -> Launch:
        tiles = self.tiles("gradient_of_bias")
        blocks = shape[0] * shape[1] * -(-shape[2] // tiles.queries) * -(-shape[3] // tiles.keys)
        constants = {"W": self.W, "STEP": self.step, "BLOCK_M": tiles.queries, "BLOCK_N": tiles.keys}
        numbers = *self.numbers, self.B, *map(int, axes)
        return Launch("gradient_of_bias", self.dtype, blocks, arrays, numbers, constants, tiles)

    def _twice(self, kernel: str, blocks: int, arrays: tuple[str, ...], *numbers: int) -> list[Launch]:
        """A kernel, and once more with care, for the tiles that met a number that is not finite."""
        tiles = self.tiles(kernel)
        constants = {"W": self.W, "STEP": self.step, "BLOCK_M": tiles.queries, "BLOCK_N": tiles.keys}
        constants["MODIFIED"] = int(self.modified)
        return [
            Launch(kernel, self.dtype, blocks, arrays, (*self.numbers, *numbers), constants | {"CARE": care}, tiles)
            for care in (0, 1)
        ]


def every_launch(target: str) -> Iterator[Launch]:
    """One launch of each kernel that is compiled for a target."""
    done = set()
    for dtype in DTYPES:
        for W, modified in itertools.product(WIDTHS, (False, True)):
            sizes = Sizes(1, 1, 1, 1, PART + 1, W, dtype, target, modified=modified)
            for program in (sizes.forward(), sizes.gradients(True, (True,) * 4 if modified else None)):
                for launch in program.launches:
                    if launch.name not in done:
                        done.add(launch.name)
                        yield launch
