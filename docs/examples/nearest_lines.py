"""7. The lines of a file that are nearest to a question: `attendax embed --output` writes vectors, NumPy compares them.

python docs/examples/nearest_lines.py notes.txt "who repairs the van?"
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from attendax.cli import main as attendax


def unit_vectors(file: Path, vectors: Path, weights: list[str]) -> np.ndarray:
    """One vector of length 1 for each line of a file; they stay in ``vectors`` for the next question."""
    if not vectors.exists() and attendax(["embed", "--file", str(file), "--output", str(vectors), *weights]):
        raise SystemExit(2)  # the command has said why
    found = np.load(vectors, mmap_mode="r")
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def main(argv: list[str] | None = None) -> list[tuple[int, str]]:
    """Run the example; returns number and text of the nearest lines, the nearest first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("question")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--weights")
    args = parser.parse_args(argv)
    weights = ["--weights", args.weights] if args.weights else []
    lines = args.file.read_text("utf-8").splitlines()
    vectors = unit_vectors(args.file, args.file.with_suffix(".npy"), weights)
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "question.txt")
        asked.write_text(args.question, "utf-8")
        (question,) = unit_vectors(asked, asked.with_suffix(".npy"), weights)
    if len(vectors) != len(lines):
        raise SystemExit(f"{args.file} has {len(lines)} lines, its vectors {len(vectors)}: remove the old .npy")
    cosines = np.where([bool(line.strip()) for line in lines], vectors @ question, -np.inf)
    nearest = [(int(k) + 1, lines[k]) for k in np.argsort(-cosines)[: args.top] if cosines[k] > -np.inf]
    for number, line in nearest:
        print(f"{cosines[number - 1]:6.3f}  {number:>4}  {line}")
    return nearest


if __name__ == "__main__":
    main()
