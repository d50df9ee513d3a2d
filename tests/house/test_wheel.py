"""The wheel has what the commands need, and of the benchmarks no more: by their imports, without building it."""

import tomllib

from test_imports import graph_of

from places import ROOT

WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
STARTED = ["bench", "matrix"]  # by `attendax bench`, and by `attendax check --all-installed` and `--all-models`


def reached(graph, names):
    """Names that these import, and that those import in turn."""
    found, waiting = set(), [*names]
    while waiting:
        if (name := waiting.pop()) in graph and name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def shipped():
    left = [ROOT / path for path in WHEEL["exclude"]]
    paths = [path for path in (ROOT / "benchmarks").rglob("*.py") if not {path, *path.parents} & {*left}]
    names = (path.relative_to(ROOT / "benchmarks").with_suffix("").parts for path in paths)
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names}


def test_of_the_benchmarks_it_has_what_the_commands_run():
    assert shipped() == reached(graph_of(ROOT / "benchmarks"), STARTED)


def test_what_is_left_out_is_there():
    assert [path for path in WHEEL["exclude"] if not (ROOT / path).exists()] == []
