"""``python tests/choosing.py FOLDER...``: the default suite, from what ``pytest --record FOLDER`` has noted.

``pytest`` runs it by default: a test of each law on each implementation, each test that a table of planted mistakes
names as the one that notices, those of the public names and commands, the first block of pages that need nothing else,
rules about all files, and the tests of at most 0.3 seconds that run lines of the package that no other does.
``pytest -m full`` runs the rest. The list, ``default.json``, has the seconds of each test, and why it is there.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from places import TESTS

LIST = TESTS / "default.json"
ABSENT = pytest.StashKey()  # listed tests that were not collected: tests/house/test_default_suite.py reports them
LAWS_IN_SHORT = (
    *(
        "l1_",
        "l2_",
        "l3_",
        "l4_",
        "l5_",
        "l6_the_future",
        "l7_half",
        "l8_a_wider",
        "l9_two",
        "l10_",
        "l11_empty_sizes[5-0-2",
    ),
    *("l12_the_jacobians", "l13_", "l15_the", "l17_"),
)
ALWAYS = (  # beginnings of names: laws, public names, commands, pages, judges that share no code with us, rules
    *(f"tests/engine/test_laws.py::test_{name}" for name in LAWS_IN_SHORT),
    "src/",
    "tests/engine/gradients/test_cross_validation.py::test_specification_gives_the_same_bits",
    "tests/kit/test_describe.py::test_the_command",
    "tests/learn/test_learn.py::TestCommands",
    "tests/encoders/test_embed_command.py",
    "tests/seeds/test_seeds.py",
    "tests/pages/test_readme.py",
    "tests/pages/test_pages.py::test_the_first_block",
    "tests/engine/test_outside_judges.py",
    "tests/kit/test_conformance_without_jax.py",
    *(f"tests/house/test_imports.py::test_{name}" for name in ("no_circle", "every_part", "layers", "the_")),
    *(f"tests/pages/test_map.py::test_{name}" for name in ("what_is_named", "every_part")),
    *(f"tests/pages/test_words.py::test_{name}" for name in ("no_sentence", "a_docstring")),
    *(f"tests/pages/test_docs.py::test_{name}" for name in ("a_release_is", "the_text_of_a_tag")),
    "tests/house/test_wheel.py",
    "tests/house/test_tests_of_laws.py",
    *(f"tests/house/test_default_suite.py::test_{name}" for name in ("each_listed", "whatever")),
)
PRICE = 0.3  # seconds that a test may cost which is there for lines that no cheaper test runs


def noticing():
    """Table of planted mistakes -> the tests that notice them; without parameters, with any."""
    from mistakes_in_kernels import KERNELS
    from mistakes_in_native import MISTAKES

    layers, kernels = (
        f"tests/engine/test_mistakes_in_{name}.py::test_an_untouched_copy_passes_every_judge"
        for name in ("layers", "kernels")
    )
    return {
        "kernels": {f"{kernels}[{mistake.judge}-{mistake.setting}]" for mistake in KERNELS},
        "native": {f"tests/engine/native/{test}" for mistake in MISTAKES for test in mistake.catchers},
        "layers": {f"{layers}[{name}]" for name in ("spec", "ops")},
        "devices": {"tests/engine/devices/test_on_eight.py::test_on_eight_devices"},
        "kit": {"tests/kit/test_conformance_mistakes.py::test_each_mistake_is_caught_by_its_case"},
    }


def names(test):
    """Of a test, with its parameters and without."""
    return {test, test.partition("[")[0]}


def recorded(folders):
    """Test -> (seconds, lines); of a test that was noted twice the fewer seconds."""
    found = {}
    for file in (file for folder in folders for file in sorted(Path(folder).glob("*.jsonl"))):
        for told in map(json.loads, file.read_text("utf-8").splitlines()):
            before = found.get(told["test"], (float("inf"), set()))
            found[told["test"]] = min(before[0], told["seconds"]), before[1] | in_lines(told["lines"])
    return found


def in_lines(ranges):
    """{file: [[first, last], ...]} as pairs (file, line)."""
    return {(file, n) for file, of_file in ranges.items() for a, b in of_file for n in range(a, b + 1)}


def chosen(tests, always, price=PRICE):
    """Test -> [seconds, why]: those that are always there, then whichever runs most new lines in a second.

    Of these none whose lines others run as well, and none that costs more than the price.
    """
    kept = {test: [tests[test][0], "named"] for test in tests if always(test)}
    seen = set().union(*(tests[test][1] for test in kept))
    left = {test: lines - seen for test, (_, lines) in tests.items() if test not in kept and lines - seen}
    added = []
    while left:
        best = max(left, key=lambda test: (len(left[test]) / max(tests[test][0], 0.02), test))
        added.append(best)
        new = left.pop(best)
        left = {test: rest for test, lines in left.items() if (rest := lines - new)}
    times = Counter(line for test in added for line in tests[test][1] - seen)
    for test in sorted(added, key=lambda test: -tests[test][0]):
        own = sum(times[line] == 1 for line in tests[test][1] - seen)
        if own == 0 or tests[test][0] > price:
            times.subtract(tests[test][1] - seen)
        else:
            kept[test] = [tests[test][0], f"{own} lines"]
    return kept


def main(folders):
    """Write the list."""
    sys.path[:0] = [str(TESTS / "engine"), str(TESTS / "engine" / "native")]
    tests, notices = recorded(folders), set().union(*noticing().values())
    kept = chosen(tests, lambda test: bool(names(test) & notices) or test.startswith(ALWAYS))
    if missing := sorted(notices - set().union(*map(names, tests))):
        raise SystemExit(f"not recorded, though a table of mistakes names them: {', '.join(missing)}")
    LIST.write_text(json.dumps(dict(sorted(kept.items())), indent=0) + "\n", "utf-8")
    spent = sum(seconds for seconds, _ in kept.values())
    everything = sum(seconds for seconds, _ in tests.values())
    print(f"{len(kept)} of {len(tests)} tests, {spent:.0f} of {everything:.0f} CPU seconds")


if __name__ == "__main__":
    main(sys.argv[1:])
