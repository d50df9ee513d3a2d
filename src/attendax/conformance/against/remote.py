"""One of two functions, which takes and returns NumPy arrays: in a process of its own, or in this one."""

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import itertools
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from attendax.exits import Refusal

from ..adapters.implementation import OPTIONS
from ..cases.case import Leaves
from ..frameworks import NAMES, framework, text
from ..worker import foreign
from ..worker.calling import Subject, Worker
from ..worker.errors import Died, Failed
from ..worker.place import name_of, path_in_other_process
from . import weights
from .options import HEAD_NAMES, completed

CALL_SECONDS, TOTAL_TIME = 60.0, 600.0  # seconds of a call, and of all calls
LATER_SECONDS = 5.0  # seconds of a call, if another call had no answer in time
PLAIN_TYPES = (bool, int, float, str, type(None))
IMPORTS = {"jax": "import jax.numpy as xp", "numpy": "import numpy as xp", "torch": "import torch as xp"}
FOREIGN = "from attendax.conformance.worker.foreign import implementation\n\nfn = implementation({0!r}).attend"
SET_HEADS = """def fn(*arrays, call=fn, {name}={own}, **options):
    object.__setattr__({at}, {name!r}, {name})
    try:
        return call(*arrays, **options)
    finally:
        object.__setattr__({at}, {name!r}, {own})"""
LITERAL = re.compile(r"None|True|False|[\d.]+")
LEAF_NAMES = ("out", "lse")
PERHAPS = "found"  # of a result that is a tuple, whatever others are
OUT_LAST = "found[::-1]"
# of an array, a tuple, ..., a tuple whose second is the result
CONTAINERS = "", PERHAPS, "found.values()", "vars(found).values()", OUT_LAST
OBJECT = "types.SimpleNamespace"  # an argument that is one
Results = tuple[np.ndarray, ...]


class CallRequest(NamedTuple):
    """One call of a function, or of ``adapted`` in a code around it; without results, of which arrays it is."""

    arrays: tuple[Any, ...] = ()
    options: Mapping[str, Any] = {}
    code: str = ""
    results: bool = True


class Here(Subject):
    """A function in this process; NumPy arrays are tried first, then those of the frameworks that it imports."""

    asked = CallRequest

    def __init__(self, fn: Any, arrays: str = "") -> None:
        """Tell the parameters: all of them, those that must be given, and the defaults of the others.

        If ``arrays`` names a framework, it is given no others.
        """
        if made := foreign.implementation(fn) if foreign.is_path(fn) else None:
            self.fn, self.kinds = made.attend, [made.arrays]
        else:
            given = text.resolve(fn) if isinstance(fn, str) else fn
            self.fn = text.instance(given)
            fn = f"{fn}()" if isinstance(fn, str) and self.fn is not given else fn
            self.kinds = [arrays] if arrays else []
        self.programs: dict[tuple[Any, ...], Callable[..., Any]] = {}  # of JAX
        self.container, self.writes = 0, False  # whether it writes to the arrays that it is given
        self.fixed: set[str] = set()  # options whose numbers it looks at
        around = vars(sys.modules.get(getattr(inspect.unwrap(self.fn), "__module__", ""), types)).values()
        self.uses = {x.__name__.partition(".")[0] for x in around if isinstance(x, types.ModuleType)}
        bare = self.uses.isdisjoint(NAMES)  # a function of methods alone
        others = (x for x in ("jax", "torch") if x in sys.modules or (bare and importlib.util.find_spec(x)))
        others = (x for x in others if x != "jax" or not _is_of_numpy(self.fn))
        self.kinds = self.kinds or ["numpy", *others]
        if not callable(self.fn):
            raise ValueError(f"{fn} is of type {type(self.fn).__name__}, expected a function")
        parameters = _parameters(self.fn)
        self.told = {"source": _source(self.fn)}
        self.told["documentation"] = f"{getattr(self.fn, '__name__', '')}\n{inspect.getdoc(self.fn) or ''}"
        torch, self.told["path"] = sys.modules.get("torch"), fn if isinstance(fn, str) else ""
        own = dict(self.fn.named_parameters()) if torch and isinstance(self.fn, torch.nn.Module) else {}
        self.told["weights"] = {name: list(x.shape) for name, x in own.items()}
        in_order = by_position(parameters)
        parameters, in_containers = _of_weights(parameters, self.told["source"])
        heads, of_object = _of_heads(self.fn, parameters)
        parameters, self.by_name = [*parameters, *heads], self.fn
        if called := "\n".join(filter(None, (in_order, in_containers, of_object))):
            given = {"fn": self.fn}
            exec(called, given)
            self.by_name = given["fn"]
        names, required = ([p.name for p in parameters if p.default is p.empty or some] for some in (True, False))
        defaults = {p.name: p.default for p in parameters if _is_plain(p.default)}
        if made:
            required = names[:3]
            names += OPTIONS[: len(OPTIONS) * (len(names) == 3)]  # it takes every keyword of attendax
        self.told |= {"names": names, "required": required, "defaults": defaults, "by_position": called}

    def answer(self, request: CallRequest) -> Leaves:
        """One call."""
        if not request.results:
            return {"out": np.array([NAMES.index(self.kinds[0]), self.container, self.writes])}
        fn, said = self.by_name, dict[str, Failed]()
        if request.code:  # which makes it callable by name itself
            names: dict[str, Any] = {"__name__": "adapter", "fn": self.fn}
            exec(compile(request.code, "adapter.py", "exec"), names)
            fn = names["adapted"]
        for kind in list(self.kinds):
            arrays, options = _made(request.arrays, kind), _made(request.options, kind)
            try:
                if kind == "jax":
                    parts = self._in_programs(fn, request.code, arrays, options)
                else:
                    with _on_one_thread(kind):
                        parts = self._parts(fn(*arrays, **options), arrays, request.code)
                    given = [(x, y) for x, y in zip(arrays, request.arrays, strict=True) if isinstance(y, np.ndarray)]
                    after = (framework("torch").to_numpy(x) if kind == "torch" else x for x, _ in given)
                    same = (np.array_equal(x, y, equal_nan=True) for x, (_, y) in zip(after, given, strict=True))
                    self.writes |= not all(same)
            except (Exception, SystemExit) as error:
                said[kind] = Failed.by(error)
                continue
            if not isinstance(parts, list):
                raise Failed(f"it gives {type(parts).__name__}, expected an array")
            self.kinds = [_kind_of(parts[0], kind)]  # its own from now on
            results = (framework("torch").to_numpy(x) if _kind_of(x, "") == "torch" else np.array(x) for x in parts)
            return dict(zip(LEAF_NAMES, results, strict=False))
        raise said[next((kind for kind in reversed(self.kinds) if kind in self.uses), self.kinds[0])]

    def _parts(self, found: Any, arrays: Any, code: str = "") -> Any:
        """The first two arrays of a result, that of the shape of attention first; a result without arrays as it is."""
        container = _container(found)
        if container == 1 and not code:
            several = len(arrays) == 3 and arrays[2].shape[-1] not in arrays[1].shape[:-1]  # else weights may look so
            right = (*arrays[0].shape[:-1], arrays[2].shape[-1]) if several else ()
            turned = bool(right) and [getattr(x, "shape", ()) == right for x in found[:2]] == [False, True]
            container = CONTAINERS.index(OUT_LAST) if turned or CONTAINERS[self.container] == OUT_LAST else container
        self.container = max(self.container, container)
        parts = [x for x in eval(CONTAINERS[container] or "[found]", {"found": found}) if hasattr(x, "dtype")][:2]
        return parts or found

    def _in_programs(self, fn: Any, code: str, arrays: Any, options: Mapping[str, Any]) -> Any:
        """Call a JAX function as one XLA program for each shape, or as it is if it looks at numbers.

        Compiling each operation of a call by itself takes five times as long. A narrow dtype is not compiled: XLA
        would leave out the roundings that are asked for.
        """
        import jax

        leaves = {k: jax.tree.leaves(x) for k, x in options.items()}
        given = [x.dtype for x in (*arrays, *itertools.chain(*leaves.values())) if hasattr(x, "dtype")]
        if any(x.itemsize == 2 and x.kind in "fV" for x in given):
            return self._parts(fn(*arrays, **options), arrays, code)
        inputs = {k for k, some in leaves.items() if some and all(hasattr(x, "dtype") for x in some)}
        numbers = {k for k, some in leaves.items() if some and all(type(x) in (int, float) for x in some)} - self.fixed
        if numbers:  # they change without another program
            with contextlib.suppress(Exception):
                return self._program(fn, code, arrays, options, inputs | numbers)
        try:
            found = self._program(fn, code, arrays, options, inputs)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
            found = self._parts(fn(*arrays, **options), arrays, code)
        self.fixed |= numbers
        return found

    def _program(self, fn: Any, code: str, arrays: Any, options: Mapping[str, Any], inputs: Collection[str]) -> Any:
        """Run the program for these options; those that are not ``inputs`` are constants of it."""
        from ..frameworks.in_jax import cheap_jit

        constants = {k: x for k, x in options.items() if k not in inputs}
        key = code, repr(sorted(constants.items()))

        def run(arrays: Any, given: Any) -> Any:
            return self._parts(fn(*arrays, **given, **constants), arrays, code)

        program = self.programs.setdefault(key, cheap_jit(run))
        return program(arrays, {k: options[k] for k in inputs})


class Function:
    """One of the two, in a process of its own if that can import it. Anything but a function is refused."""

    def __init__(
        self, fn: Any, *, in_process: bool = False, arrays: str = "", stated: Mapping[str, str] | None = None
    ) -> None:
        """``stated`` is the option that a keyword is, by its name, where that does not tell."""
        there = "" if in_process else path_in_other_process(fn, "the function")[0]
        self.path = there or (fn if isinstance(fn, str) else text.path_of(fn) or name_of(fn))
        self.spent, self.patience, self.answered = 0.0, CALL_SECONDS, False
        try:
            self.subject: Subject = Worker("either", {"path": there, "arrays": arrays}) if there else Here(fn, arrays)
            told = self.subject.start()
        except Died as died:
            self.subject.close()
            raise Refusal(f"{self.path}: when it was imported: {died}") from died
        except ValueError as error:
            raise Refusal(str(error).removeprefix("check: ")) from error
        if "raised" in told:
            self.subject.close()
            raise Refusal(f"{self.path}: {told['line'].removeprefix('ValueError: ').removeprefix('check: ')}")
        self.path = told["path"] or self.path
        self.weights: dict[str, list[int]] = told["weights"]  # the shapes of those that a PyTorch module has
        self.names: list[str] = told["names"]
        self.stated = stated or {}
        self.defaults = {k: tuple(x) if isinstance(x, list) else x for k, x in told["defaults"].items()}
        self.by_position: str = told["by_position"]
        self.documentation: str = told["documentation"]  # its name and its docstring
        self.source: str = told["source"]
        self.required, self.meant, self.by_name = completed(self.names, told["required"], self.defaults, self.source)

    def __call__(self, /, *arrays: Any, **options: Any) -> Results:
        """One call; raises Failed where it raises, dies, or gives no arrays."""
        return self._run("", *arrays, **options)

    def _run(self, code: str, /, *arrays: Any, **options: Any) -> Results:
        self.subject.allow(self.patience)
        options = {k: _told(x) for k, x in options.items()}
        try:
            found = self.subject.ask(CallRequest(arrays, options, code))
        except Died as died:
            if died.how == "timeout" and self.answered:  # of other sizes, perhaps
                self.patience = min(self.patience, LATER_SECONDS)
            elif died.how == "timeout":
                raise Refusal(f"{self.path}: a call with {len(arrays)} small arrays: {died.args[0]}") from died
            raise
        finally:
            self.spent += self.subject.taken
        self.answered = True
        if self.spent > TOTAL_TIME:
            raise Refusal(f"{self.path}: its calls took {TOTAL_TIME:.0f} seconds, too long to compare; make it quicker")
        return tuple(found[name] for name in LEAF_NAMES if name in found)

    def kind(self) -> str:
        """The framework of its arrays, as far as it was called."""
        return NAMES[int(self.subject.ask(CallRequest(results=False))["out"][0])]

    def container(self) -> str:
        """Python for the arrays of its result, if that is another object."""
        return CONTAINERS[int(self.subject.ask(CallRequest(results=False))["out"][1])]

    def writes(self) -> bool:
        """Tell whether it wrote to an array that it was given."""
        return bool(self.subject.ask(CallRequest(results=False))["out"][2])

    def adapted(self, code: str) -> Callable[..., Results]:
        """The function ``adapted`` of that code, run where this function is."""
        return functools.partial(self._run, code)


def reached(form: Any) -> str:
    """Python that makes ``fn`` the function of a form, which is called by name."""
    return "\n".join(filter(None, (import_line(form.path), form.by_position)))


def import_line(path: str) -> str:
    """Python that makes ``fn`` the function of that path."""
    if foreign.is_path(path):
        return FOREIGN.format(path)
    return text.import_line(None, path) if ":" in path else f"# fn is {path}"


def _is_of_numpy(fn: Any) -> bool:
    """Tell whether a function uses NumPy and nothing else from around it, so that JAX arrays would change nothing."""
    around = inspect.getclosurevars(fn) if inspect.isfunction(fn) else None
    used = [*around.globals.values(), *around.nonlocals.values()] if around else []
    return bool(used) and all(x is np for x in used)


def _source(fn: Any) -> str:
    """The text of a function, or of the method of an object, after its comments; and of those of its module."""
    fn = inspect.unwrap(fn)
    fn = next((x for name in ("forward", "__call__") if inspect.isfunction(x := getattr(type(fn), name, None))), fn)
    around, names = getattr(fn, "__globals__", {}), getattr(getattr(fn, "__code__", None), "co_names", ())
    beside = (x for x in map(around.get, names) if inspect.isfunction(x) and x.__module__ == fn.__module__)
    return "\n\n".join([inspect.getcomments(fn) or "", *map(text.source_of, (fn, *beside))]).lstrip()


def _parameters(fn: Any) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # compiled: its documentation begins with its signature
        parameters = _documented(fn)
    anything = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    parameters = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if not anything or parameters:
        return parameters
    if found := _of_torch(fn):
        return found
    return [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("query", "key", "value")]  # *args


def _of_weights(given: list[inspect.Parameter], source: str) -> tuple[list[inspect.Parameter], str]:
    """The parameters, with weights by name in place of dicts, objects and tuples of them; Python to call ``fn`` so."""
    found = weights.contained([p.name for p in given], source)
    parameters = [p.replace(name=x) for p in given for x in found.get(p.name, (p.name,))]
    return parameters, weights.by_name(found)


def _of_heads(fn: Any, given: list[inspect.Parameter]) -> tuple[list[inspect.Parameter], str]:
    """The number of heads that an object has in an attribute, as a parameter; and Python to call ``fn`` so."""
    torch, owner = sys.modules.get("torch"), getattr(fn, "__self__", fn)
    has_weights = torch and isinstance(owner, torch.nn.Module)  # of that number
    known = has_weights or {p.name for p in given} & {*HEAD_NAMES}
    if known or isinstance(owner, type | types.ModuleType | types.FunctionType | functools.partial):
        return [], ""
    place = "call" if owner is fn else "call.__self__"
    places = {place: owner} | {f"{place}.{name}": x for name, x in getattr(owner, "__dict__", {}).items()}
    for at, x in places.items():
        attributes = getattr(x, "__dict__", {})
        for name in (name for name in HEAD_NAMES if type(attributes.get(name)) is int):
            code = SET_HEADS.format(at=at, name=name, own=attributes[name])
            return [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=attributes[name])], code
    return [], ""


def _of_torch(fn: Any) -> list[inspect.Parameter]:
    """The parameters of an operator of PyTorch by its schema; of a module, and of ``apply``, by their forward."""
    owner, torch = getattr(fn, "__self__", None), sys.modules.get("torch")
    if schema := getattr(getattr(fn, "default", fn), "_schema", None):
        none = inspect.Parameter.empty
        named = [(x.name, x.default_value if x.has_default_value() else none) for x in schema.arguments]
        return [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=x) for name, x in named]
    if torch and isinstance(fn, torch.nn.Module):
        return _parameters(fn.forward)
    if not (torch and isinstance(owner, type) and issubclass(owner, torch.autograd.Function)):
        return []
    given = _parameters(owner.forward)  # type: ignore[attr-defined]
    own = owner.setup_context is torch.autograd.Function.setup_context  # type: ignore[attr-defined]
    return [p.replace(kind=p.POSITIONAL_ONLY) for p in given[own:]]  # its first is the context


def by_position(parameters: list[inspect.Parameter]) -> str:
    """Python that lets ``fn`` be called by name; empty if not needed. It ends before defaults without Python text."""
    if not any(p.kind is p.POSITIONAL_ONLY for p in parameters[3:]):
        return ""
    known = itertools.takewhile(lambda p: p.default is p.empty or _is_plain(p.default), parameters)
    words = {p.name: None if p.default is p.empty else p.default for p in known}
    call = "call(*(in_order | dict(zip(in_order, arrays)) | options).values())"
    return f"in_order = {words!r}\nfn = lambda *arrays, call=fn, **options: {call}"


@contextlib.contextmanager
def _on_one_thread(kind: str) -> Iterator[None]:
    """Small arrays: threads of torch that wait for each other on a busy machine would take most of the time."""
    torch = sys.modules.get("torch") if kind == "torch" else None
    count = torch.get_num_threads() if torch else 0
    try:
        if torch:
            torch.set_num_threads(1)
        yield
    finally:
        if torch:
            torch.set_num_threads(count)


def _is_plain(x: Any) -> bool:
    return isinstance(x, PLAIN_TYPES) or (isinstance(x, tuple) and all(isinstance(y, PLAIN_TYPES) for y in x))


def _documented(fn: Any) -> list[inspect.Parameter]:
    found = re.search(r"\((.*?)\) ?->", getattr(fn, "__doc__", "") or "", re.DOTALL)
    if not found:
        raise ValueError("it does not tell its parameters; wrap it in a function that does")
    words = [word.strip() for word in found[1].replace("\n", " ").split(",") if word.strip() not in ("*", "/")]
    pairs = [[x.strip() for x in word.split("=")] for word in words]
    defaults = {pair[0]: pair[1] for pair in pairs if pair[1:]}
    known = {k: ast.literal_eval(x) if LITERAL.fullmatch(x) else ... for k, x in defaults.items()}
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(pair[0], kind, default=known.get(pair[0], inspect.Parameter.empty)) for pair in pairs]


class SegmentIds(NamedTuple):
    """Segment ids in one argument."""

    q: Any
    kv: Any


def _told(x: Any) -> Any:
    """An argument as it goes to another process: an object, or a named tuple, by its attributes."""
    if isinstance(x, types.SimpleNamespace):
        return {OBJECT: vars(x)}
    return {OBJECT: x._asdict()} if hasattr(x, "_asdict") else x


def _made(x: Any, kind: str) -> Any:
    if isinstance(x, Mapping):
        if set(x) == {OBJECT}:
            values = _made(x[OBJECT], kind)
            return SegmentIds(**values) if set(values) == {*SegmentIds._fields} else types.SimpleNamespace(**values)
        return {k: _made(v, kind) for k, v in x.items()}
    if isinstance(x, tuple):
        return tuple(_made(v, kind) for v in x)
    if not isinstance(x, np.ndarray):
        return x
    wide = x.dtype == np.float64  # of NumPy's np.where(mask, 0.0, -np.inf)
    return framework(kind).asarray(x.astype(np.float32) if wide else x.copy())  # which it may write to


def _container(found: Any) -> int:
    """The place in ``CONTAINERS`` of a result."""
    if isinstance(found, (tuple, list)):
        return 1
    return 2 if isinstance(found, Mapping) else 3 if dataclasses.is_dataclass(found) else 0


def _kind_of(x: Any, kind: str) -> str:
    home = type(x).__module__.partition(".")[0]
    return "jax" if home in ("jax", "jaxlib") else "torch" if home == "torch" else kind


def subject(message: dict[str, Any], trying: Any) -> Subject:
    """One of the two, in the process that has it."""
    return Here(message["path"], message["arrays"])
