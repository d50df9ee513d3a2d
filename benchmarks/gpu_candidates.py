"""Tiles of other sizes for the kernels of Triton, compiled before there is a GPU to time them.

``python -m benchmarks.gpu_candidates`` compiles them into ``build/candidates``, with the Triton of ``build.py``. Each
candidate is a target of its own: the tiles of the real one, with others for one kernel at one width.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from attendax.kernels.gpu import build, compiled, launches
from attendax.kernels.gpu.launches import Tiles

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "candidates"
PACKAGE = "attendax_gpu_candidates"
DTYPE = "bfloat16"
TILES = {  # queries, keys, warps, stages; each at the widths 128 and 64
    "forward": ((128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (128, 128, 8, 3), (64, 64, 4, 3)),
    "gradient_of_query": ((128, 64, 8, 2), (128, 64, 8, 3), (128, 32, 8, 3), (64, 128, 8, 2), (64, 64, 4, 2)),
    "gradients_of_keys": ((64, 128, 8, 2), (32, 64, 8, 3), (64, 64, 8, 2), (32, 128, 8, 2), (64, 64, 4, 2)),
}


class Candidate(NamedTuple):
    """Other tiles for a kernel at a width, on a target."""

    number: int
    target: str
    width: int
    kernel: str
    tiles: Tiles

    @property
    def name(self) -> str:
        """The name of the target that has these tiles."""
        return f"{self.target}-{self.number}"

    @property
    def is_default(self) -> bool:
        return launches.TILES[self.target, 2][self.kernel][launches.WIDTHS.index(self.width)] == self.tiles

    @property
    def table(self) -> dict[str, tuple[Tiles, ...]]:
        """The tiles of its target."""
        table = dict(launches.TILES[self.target, 2])
        tiles = list(table[self.kernel])
        tiles[launches.WIDTHS.index(self.width)] = self.tiles
        return table | {self.kernel: tuple(tiles)}

    def every_launch(self) -> list[launches.Launch]:
        """The launches of a plain call of up to one part of keys."""
        with mock.patch.dict(launches.TILES, {(self.name, 2): self.table}):
            sizes = launches.Sizes(1, 1, 1, 1, 1, self.width, DTYPE, self.name)
            return [*sizes.forward().launches, *sizes.gradients(True, None).launches]


def candidates(target: str) -> Iterator[Candidate]:
    """All of a target, the larger width first."""
    number = 0
    for width in (128, 64):
        for kernel, every in TILES.items():
            for tiles in every:
                yield Candidate(number, target, width, kernel, Tiles(*tiles))
                number += 1


@contextmanager
def in_place(candidate: Candidate) -> Iterator[None]:
    """Calls take the tiles of a candidate."""
    with (
        mock.patch.dict(launches.TILES, {(candidate.name, 2): candidate.table}),
        mock.patch.object(compiled, "target", return_value=candidate.name),
        mock.patch.object(compiled, "PACKAGE", PACKAGE),
        mock.patch.object(sys, "path", [str(FOLDER), *sys.path]),
    ):
        forget()
        try:
            yield
        finally:
            forget()


def forget() -> None:
    """Read the index of the package again: it is another one."""
    for each in (compiled.package, compiled._added):
        each.cache_clear()


def has(candidate: Candidate) -> bool:
    """Tell whether its kernels were compiled."""
    names = {f"{candidate.name}/{launch.name}" for launch in candidate.every_launch()}
    with in_place(candidate):
        return not compiled.package().why_not and names <= {*compiled.package().kernels}


def main(argv: list[str] | None = None) -> int:
    """Compile the candidates of a target. One that needs more shared memory than there is is left out."""
    parser = argparse.ArgumentParser(description="Compile tiles of other sizes for a GPU, without one.")
    parser.add_argument("--target", default="sm_90", choices=list(launches.TARGETS))
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    args = parser.parse_args(argv)
    every = list(candidates(args.target))
    wanted = [(one.name, args.target, launch) for one in every for launch in one.every_launch()]
    kernels: dict[str, Any] = build.compile_all(FOLDER / PACKAGE, wanted, args.processes)
    too_large = {name.partition("/")[0] for name, entry in kernels.items()
                 if entry["shared"] > build.MOST_SHARED[args.target]}  # fmt: skip
    build.write_index(
        FOLDER / PACKAGE, {name: entry for name, entry in kernels.items() if name.partition("/")[0] not in too_large}
    )
    for one in every:
        more = " (default)" * one.is_default + ": does not fit" * (one.name in too_large)
        print(f"{one.name}: {one.kernel} of width {one.width}, {tuple(one.tiles)}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
