"""The launches of a call: which kernels, over which arrays, in tiles of which size.

The size of a tile depends on the widths, the dtype and the GPU alone, never on the number of queries, keys or texts:
so a row is added up in one order, whatever else is in the call (L15).
"""

from collections.abc import Iterator
from typing import NamedTuple

DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = (64, 128, 256)  # of queries, keys and values; others are padded with zeros
TARGETS = {"sm_80": ((8, 0), (8, 6), (8, 7), (8, 9)), "sm_90": ((9, 0),)}  # and the capabilities of GPUs that run it
INT32 = ("seen", "query_ids", "key_ids", "reach")
INT8 = ("marked_keys", "marked")
FLOAT32 = ("scale", "row_max", "row_sum", "lse", "dlse", "delta", "shift", "share")


def widths(dtype: str) -> tuple[int, ...]:
    """The widths of a dtype: in float32 the largest would need more registers than there are."""
    return WIDTHS[:-1] if dtype == "float32" else WIDTHS


class Tiles(NamedTuple):
    """The size of a tile, the warps that compute it, and how many tiles are loaded at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
TILES = {  # by target and bytes of a number, and by kernel: one for each of the widths
    ("sm_80", 2): {
        "forward": (Tiles(128, 64, 8, 2), Tiles(128, 32, 8, 2), Tiles(64, 32, 8, 2)),
        "gradient_of_query": (Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 2), Tiles(32, 32, 8, 2)),
        "gradients_of_keys": (Tiles(64, 64, 8, 2), Tiles(32, 64, 8, 2), Tiles(32, 32, 8, 1)),
    },
    ("sm_80", 4): {
        "forward": (Tiles(32, 32, 4, 2), Tiles(32, 16, 8, 2)),
        "gradient_of_query": (Tiles(32, 32, 8, 2), Tiles(16, 32, 8, 2)),
        "gradients_of_keys": (Tiles(32, 32, 8, 2), Tiles(16, 16, 8, 2)),
    },
    ("sm_90", 2): {
        "forward": (Tiles(128, 64, 4, 3), Tiles(128, 128, 8, 2), Tiles(128, 32, 8, 2)),
        "gradient_of_query": (Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(32, 32, 8, 2)),
        "gradients_of_keys": (Tiles(64, 128, 8, 2), Tiles(64, 64, 8, 2), Tiles(32, 32, 8, 2)),
    },
    ("sm_90", 4): {
        "forward": (Tiles(128, 32, 8, 2), Tiles(32, 16, 8, 2)),
        "gradient_of_query": (Tiles(64, 32, 8, 2), Tiles(16, 32, 8, 2)),
        "gradients_of_keys": (Tiles(32, 32, 8, 2), Tiles(16, 16, 8, 2)),
    },
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
OPERANDS = ("query", "key", "value", "scale", "seen", "query_ids", "key_ids")
RESULTS = ("row_max", "row_sum", "lse")
ROWS = ("delta", "shift", "share")


class Program(NamedTuple):
    """Launches one after the other, over arrays that are given and results, of which some are scratch memory."""

    given: tuple[str, ...]
    results: Shapes
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
    seen_b: bool = False  # whether ``seen`` differs from text to text
    ids_b: bool = False

    def tiles(self, kernel: str) -> Tiles:
        """The tiles of a kernel."""
        return TILES[self.target, BYTES[self.dtype]][kernel][WIDTHS.index(self.W)]

    def forward(self) -> Program:
        """``out``, ``row_max``, ``row_sum``, ``lse``; and which tiles met a number that is not finite."""
        B, N, G, T, S, W = self[:6]
        tiles = self.tiles("forward")
        of_keys, blocks = -(-S // tiles.keys) * B * G, -(-T // tiles.queries) * B * N
        results: Shapes = {"out": ((B, N, T, W), self.dtype)} | dict.fromkeys(RESULTS, ((B, N, T), "float32"))
        results |= {"marked_keys": ((of_keys,), "int8"), "marked": ((blocks,), "int8")}
        arrays = *OPERANDS, "marked_keys", "out", *RESULTS, "marked"
        constants = {"W": W, "BLOCK_N": tiles.keys}
        look = Launch("mark_keys", self.dtype, of_keys, ("key", "marked_keys"), (S,), constants, tiles)
        return Program(OPERANDS, results, [look, *self._twice("forward", blocks, arrays)])

    def gradient_of_query(self) -> Program:
        """``dquery``, and what of each row both gradients need."""
        B, N, _, T, _, W = self[:6]
        numbers = N, T, self.S, int(self.seen_b)
        tiles = self.tiles("gradients_of_keys")
        rows = -(-T // tiles.queries) * B * N
        blocks = -(-T // self.tiles("gradient_of_query").queries) * B * N
        results: Shapes = {"dquery": ((B, N, T, W), self.dtype), "marked": ((blocks,), "int8")}
        results |= dict.fromkeys(ROWS, ((B, N, T), "float32")) | {"reach": ((rows, 4), "int32")}
        of_rows = "dout", "dlse", "out", "row_max", "row_sum"
        constants = {"W": W, "BLOCK_M": tiles.queries}
        arrays = *of_rows, "seen", *ROWS, "reach"
        prepare = Launch("prepare_rows", self.dtype, rows, arrays, numbers, constants, tiles)
        twice = self._twice("gradient_of_query", blocks, (*OPERANDS, "dout", *ROWS, "dquery", "marked"))
        return Program((*OPERANDS, *of_rows), results, [prepare, *twice])

    def gradients_of_keys(self) -> Program:
        """``dkey`` and ``dvalue``, from what ``gradient_of_query`` has prepared."""
        B, _, G, _, S, W = self[:6]
        blocks = -(-S // self.tiles("gradients_of_keys").keys) * B * G
        results: Shapes = {"dkey": ((B, G, S, W), self.dtype), "dvalue": ((B, G, S, W), self.dtype)}
        results |= {"marked": ((blocks,), "int8")}
        given = *OPERANDS, "dout", *ROWS, "reach"
        launches = self._twice("gradients_of_keys", blocks, (*given, "dkey", "dvalue", "marked"))
        return Program(given, results, launches)

    def _twice(self, kernel: str, blocks: int, arrays: tuple[str, ...]) -> list[Launch]:
        """A kernel, and once more with care, for the tiles that met a number that is not finite."""
        tiles = self.tiles(kernel)
        numbers = self.N, self.N // self.G, self.T, self.S, int(self.seen_b), int(self.ids_b)
        constants = {"W": self.W, "BLOCK_M": tiles.queries, "BLOCK_N": tiles.keys}
        return [
            Launch(kernel, self.dtype, blocks, arrays, numbers, constants | {"CARE": care}, tiles) for care in (0, 1)
        ]


def every_launch(target: str) -> Iterator[Launch]:
    """One launch of each kernel that is compiled for a target."""
    done = set()
    for dtype in DTYPES:
        for W in widths(dtype):
            sizes = Sizes(1, 1, 1, 1, 1, W, dtype, target)
            for program in (sizes.forward(), sizes.gradient_of_query(), sizes.gradients_of_keys()):
                for launch in program.launches:
                    if launch.name not in done:
                        done.add(launch.name)
                        yield launch
