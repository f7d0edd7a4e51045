"""Reads the source of flowrt and holds its borders: import order, one module per library, no data executed.

    errors -> dtypes -> device -> { graph | rendezvous } -> executor -> distribute -> front ends -> __init__

The checkers are functions from parsed modules to violations, one string each. The second half of the file
feeds them bad modules: a checker that finds nothing there is broken.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from flowrt.graph.op_def import OpDef

ROOT = Path(__file__).resolve().parent.parent

# What each package may import of the others. A top-level name that is not here is a front end: it may import
# all of these and other front ends. `protos` is generated messages only: beside the order, not in it.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "version": (),
    "protos": (),
    "dtypes": ("errors",),
    "loops": ("errors", "dtypes"),
    "device": ("errors", "dtypes", "loops"),
    "storage": ("errors", "dtypes", "protos"),
    "graph": (
        "errors", "base.in_notebook", "base.user_frames", "dtypes", "protos", "storage", "loops",
        "device.spec", "device.device_kinds",
    ),
    "rendezvous": ("errors", "dtypes", "protos", "device"),
    "executor": (
        "errors", "base.in_notebook", "base.progress", "dtypes", "protos", "loops", "device", "graph",
        "rendezvous",
    ),
    "base": ("errors", "graph"),
    "distribute": (
        "errors", "version", "base.progress", "dtypes", "protos", "device", "graph", "rendezvous", "executor",
        "base.closing", "base.exit_codes", "base.rotating_file", "tf1.missing_names",
    ),
}  # fmt: skip
FRONT_ENDS_INSIDE = {"flowrt.distribute.strategies"}
"""Packages that are front ends, although the package around them is not."""

EVERYWHERE = {"google", "ml_dtypes", "numpy", "threadpoolctl"} | sys.stdlib_module_names
LIBRARY_WRAPPERS: dict[str, tuple[str, ...]] = {
    "crc32c": ("flowrt.storage.checksums",),
    "PIL": ("flowrt.graph.ops.text.image_codecs", "flowrt.keras.preprocessing.image_files"),
    "cupy": ("flowrt.device.cuda.cuda",),
    "cupy_backends": ("flowrt.device.cuda.cuda",),
    "cupyx": ("flowrt.device.cuda.cuda",),
    "flowrt_command": tuple(f"flowrt.cli.{name}" for name in ("completion", "main", "run", "tf1", "worker")),
    "grpc": ("flowrt.rendezvous.grpc.grpc_call",),
    "h5py": ("flowrt.keras.saving.hdf5",),
    "highspy": ("flowrt.plan.layouts.milp",),
    "igraph": ("flowrt.viz.layout",),
    "llvmlite": ("flowrt.device.llvm.host_jit",),
    "malt": ("flowrt.autograph.conversion",),
    "mpi4py": ("flowrt.rendezvous.mpi.mpi_channel",),
    "ucxx": ("flowrt.rendezvous.ucx.ucx_worker",),
    "onnx": ("flowrt.onnx.proto",),
    "opt_einsum": ("flowrt.graph.ops.linalg.einsum", "flowrt.graph.ops.linalg.matmul"),
    "ray": ("flowrt.distribute.launch.ray_cluster",),
    "scipy": ("flowrt.contrib.opt.external", "flowrt.keras.preprocessing.affine"),
    "shtab": ("flowrt.cli.completion",),
    "sklearn": ("flowrt.examples.tutorials.mnist.stand_in", "flowrt.keras.scikit_learn"),
    "safetensors": ("flowrt.train.checkpoints.shard_file",),
    "typing_extensions": ("flowrt.graph.op_def",),  # for mypy only
    "zlib_ng": ("flowrt.rendezvous.channel.framing", "flowrt.train.checkpoints.shard_file"),
}
LATE = set(LIBRARY_WRAPPERS) - {"cupy_backends", "cupyx", "typing_extensions"}
"""Not loaded by `import flowrt`."""

OPS_BY_NAME = {"Const", "_Feed", "_Send", "_Recv", "_Loop", "_Case", "NoOp", "Identity", "Placeholder"}
"""Ops that everybody knows by name; of all others passes and the executor ask facts."""

ARRAY_PICKLES = "flowrt.keras.array_pickles"
"""The module with an unpickler that knows arrays only: data sets of Keras are pickles."""
EXECUTES_DATA = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
EMPTY_NAMES = {"common", "helper", "helpers", "misc", "util", "utils"}


@dataclass(frozen=True)
class Import:
    """One imported name: ``target`` dotted and absolute, ``function`` the enclosing one or ""."""

    target: str
    line: int
    function: str
    typing_only: bool

    @property
    def library(self) -> str:
        return self.target.split(".")[0]


@dataclass(frozen=True)
class Module:
    """One parsed file of flowrt under its dotted name; an ``__init__.py`` is the module of its package."""

    name: str
    tree: ast.Module
    imports: tuple[Import, ...]

    def at(self, line: int) -> str:
        return f"{self.name}:{line}"


Tree = dict[str, Module]  # by dotted name
Checker = Callable[[Tree], list[str]]


def parse(name: str, source: str, *, is_package: bool) -> Module:
    tree = ast.parse(source)
    package = name if is_package else name.rpartition(".")[0]
    return Module(name, tree, tuple(_imports(tree, package)))


@pytest.fixture(scope="module", autouse=True)
def no_tree_left_behind() -> Iterator[None]:
    """A million nodes, which every later collection of this process would go through."""
    yield
    read_flowrt.cache_clear()
    nodes_of.cache_clear()


@functools.cache
def read_flowrt() -> Tree:
    return {module.name: module for module in map(_read, sorted((ROOT / "flowrt").rglob("*.py")))}


def _read(path: Path) -> Module:
    is_package = path.name == "__init__.py"
    place = path.parent if is_package else path.with_suffix("")
    return parse(".".join(place.relative_to(ROOT).parts), path.read_text("utf-8"), is_package=is_package)


@functools.cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """All but the kinds that no checker asks for: four checkers go through a million nodes."""
    return [node for node in ast.walk(tree) if not isinstance(node, _UNASKED)]


_UNASKED = (ast.Constant, ast.arg, ast.expr_context, ast.operator, ast.cmpop, ast.alias)

_LEAVES = (ast.Name, ast.Constant, ast.arg, ast.expr_context, ast.operator, ast.cmpop, ast.alias)
"""Nodes that no import is below; most are of these kinds."""


def _imports(node: ast.AST, package: str, function: str = "", typing_only: bool = False) -> Iterator[Import]:
    """Every import below ``node``: also inside functions, for types only, and by import_module("name")."""
    for child in ast.iter_child_nodes(node):
        for target in _imported(child, package):
            yield Import(target, getattr(child, "lineno", 0), function, typing_only)
        if isinstance(child, _LEAVES):
            continue
        typing = typing_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        yield from _imports(child, package, _scope(child, function), typing)


def _imported(node: ast.AST, package: str) -> list[str]:
    """The targets that ``node`` itself imports; "?" for a computed name."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            parts = package.split(".")
            base = [*parts[: len(parts) - level + 1], module or ""] if level else [module or ""]
            return [".".join([*filter(None, base), alias.name]) for alias in names]
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=arguments):
            if called in ("import_module", "__import__"):
                return [_literal(arguments[0]) if arguments else "?"]
    return []


def _literal(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "?"


def _scope(node: ast.AST, function: str) -> str:
    """The dotted name of the function that the children of ``node`` are in."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return f"{function}.{name}" if function else name
        case ast.Lambda():
            return f"{function}.<lambda>" if function else "<lambda>"
    return function


# --- checkers: Tree -> violations -----------------------------------------------------------------


def resolve(target: str, modules: Tree) -> str:
    """The longest prefix of ``target`` that is a module: flowrt.graph.Graph -> flowrt.graph."""
    while "." in target and target not in modules:
        target = target.rpartition(".")[0]
    return target


def _inner_imports(module: Module) -> Iterator[Import]:
    return (found for found in module.imports if found.library == "flowrt")


def _is_lazy_attribute(module: Module, found: Import) -> bool:
    names = ("flowrt", "flowrt.distribute", "flowrt.linalg", "flowrt.nn", "flowrt.protos", "flowrt.train")
    return module.name in names and found.function == "__getattr__"


def _may_import(importer: str, imported: str) -> bool:
    """Whether the module ``importer`` may import the module ``imported`` (both dotted, from flowrt)."""
    if importer == "flowrt":
        return True
    if imported == "flowrt":
        return False
    layer = importer.split(".")[1]
    if layer not in MAY_IMPORT or _is_inner_front_end(importer):
        return True
    if _is_inner_front_end(imported):
        return False
    return any(f"{imported}.".startswith(f"flowrt.{allowed}.") for allowed in (layer, *MAY_IMPORT[layer]))


def _is_inner_front_end(module: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in FRONT_ENDS_INSIDE)


def check_order(modules: Tree) -> list[str]:
    return [
        f"{module.at(found.line)} imports {target}, which is not left of it"
        for module in modules.values()
        for found in _inner_imports(module)
        if not _is_lazy_attribute(module, found)
        and not _may_import(module.name, target := resolve(found.target, modules))
    ]


def check_cycles(modules: Tree) -> list[str]:
    """A cycle of imports works or fails by who comes first. Local imports and those for types are none."""
    edges = {name: _loaded_for(module, modules) for name, module in modules.items()}
    while leaves := [name for name, targets in edges.items() if not targets & edges.keys()]:
        for name in leaves:
            del edges[name]
    return [f"import cycle: {' -> '.join(_walk_into_cycle(edges))}"] if edges else []


def _loaded_for(module: Module, modules: Tree) -> set[str]:
    """What the imports of ``module`` load: modules, and the packages that these are in. Its own packages
    began before it.
    """
    found = set[str]()
    for each in _inner_imports(module):
        if not each.function and not each.typing_only:
            target = resolve(each.target, modules)
            found |= {target, *_packages_of(target)}
    return found - {module.name, *_packages_of(module.name)}


def _packages_of(name: str) -> list[str]:
    """The packages below flowrt that ``name`` is in: flowrt.graph.passes.optimise.fold -> flowrt.graph,
    ….passes."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(2, len(parts))]


def _walk_into_cycle(edges: dict[str, set[str]]) -> list[str]:
    """One cycle, from its first name back to it. Every node of ``edges`` must have an edge to another."""
    name, path = min(edges), list[str]()
    while name not in path:
        path.append(name)
        name = min(edges[name] & edges.keys())
    cycle = path[path.index(name) :]
    start = cycle.index(min(cycle))
    return [*cycle[start:], *cycle[: start + 1]]


def check_local_imports(modules: Tree) -> list[str]:
    return [
        f"{module.at(found.line)} imports {found.target} inside {found.function}()"
        for module in modules.values()
        for found in _inner_imports(module)
        if found.function and not _is_lazy_attribute(module, found)
    ]


def check_libraries(modules: Tree) -> list[str]:
    return [
        f"{module.at(found.line)} imports {found.target}: {_where_it_may(found.library)}"
        for module in modules.values()
        for found in module.imports
        if found.library not in EVERYWHERE | {"flowrt", "?"}
        and module.name not in LIBRARY_WRAPPERS.get(found.library, ())
    ]


def _where_it_may(library: str) -> str:
    if library not in LIBRARY_WRAPPERS:
        return "flowrt does not depend on it"
    return f"only imported by {' or '.join(LIBRARY_WRAPPERS[library])}"


def check_nothing_executes(modules: Tree) -> list[str]:
    return [f"{module.at(line)} {what}" for module in modules.values() for line, what in _executes(module)]


def _executes(module: Module) -> Iterator[tuple[int, str]]:
    for found in module.imports:
        if found.library in EXECUTES_DATA and module.name != ARRAY_PICKLES:
            yield found.line, f"imports {found.target}"
        if found.target == "?" and not _is_lazy_attribute(module, found):
            yield found.line, "imports a computed name"
    for node in nodes_of(module.tree):
        match node:
            case ast.Name(id="eval" | "exec" as name):
                yield node.lineno, f"uses {name}"
            case ast.keyword(arg="allow_pickle", value=value) if ast.unparse(value) != "False":
                yield value.lineno, "allows pickle"


def check_names(modules: Tree) -> list[str]:
    empty = (name for name in modules if EMPTY_NAMES & set(name.split(".")))
    return [f"{name} says nothing about what is in it" for name in empty]


def check_facts(modules: Tree) -> list[str]:
    """A truth of an op, such as ``alias``, is never None: a comparison with None is always the same."""
    return [
        f"{module.at(node.lineno)} compares {ast.unparse(side)}, a bool, with None"
        for module in modules.values()
        for node in nodes_of(module.tree)
        if isinstance(node, ast.Compare) and any(map(_is_none, sides := [node.left, *node.comparators]))
        for side in sides
        if isinstance(side, ast.Attribute) and side.attr in _TRUTHS
    ]


_TRUTHS = {field.name for field in fields(OpDef) if field.type == "bool"}


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def check_op_names(modules: Tree) -> list[str]:
    return [
        f"{module.at(node.lineno)} asks for {', '.join(sorted(names))} by name: ask the op for a fact"
        for module in modules.values()
        for node in nodes_of(module.tree)
        if isinstance(node, ast.Compare)
        and any(
            re.search(r"\bop(_def)?\.name$", ast.unparse(side)) for side in (node.left, *node.comparators)
        )
        and (names := _names_in(node, module.tree) - OPS_BY_NAME)
    ]


def _names_in(compare: ast.Compare, tree: ast.Module) -> set[str]:
    """The CamelCase strings that ``compare`` tests, also those of a constant of its module."""
    constants = {ast.unparse(s.targets[0]): s.value for s in tree.body if isinstance(s, ast.Assign)}
    tested = [constants.get(ast.unparse(side), side) for side in (compare.left, *compare.comparators)]
    strings = [n.value for side in tested for n in ast.walk(side) if isinstance(n, ast.Constant)]
    return {s for s in strings if isinstance(s, str) and re.match("_?[A-Z]", s)}


def check_op_look_ups(modules: Tree) -> list[str]:
    """An op is looked up by name only where to import its definition would make a cycle."""
    edges = {name: _loaded_for(module, modules) for name, module in modules.items()}
    defined = {op: module for module in modules.values() for op in _defined_ops(module)}
    return [
        f"{module.at(line)} looks up {op}: import it from {defined[op].name}"
        for module in modules.values()
        for line, op in _looked_up_ops(module)
        if op in defined and module.name not in _reached(defined[op].name, edges)
    ]


def _defined_ops(module: Module) -> Iterator[str]:
    """The ops that ``module`` binds to names: ``add = define_op("Add", ...)``, or by a helper of its own."""
    for statement in module.tree.body:
        match statement:
            case ast.Assign(
                value=ast.Call(args=[ast.Constant(value=str(op)), *_], func=ast.Name(id=called))
            ) | (
                ast.AnnAssign(
                    value=ast.Call(args=[ast.Constant(value=str(op)), *_], func=ast.Name(id=called))
                )
            ) if module.name.startswith("flowrt.graph.ops.") and called != "op_def":
                yield op


def _looked_up_ops(module: Module) -> Iterator[tuple[int, str]]:
    for node in nodes_of(module.tree):
        match node:
            case ast.Call(func=ast.Name(id="op_def"), args=[ast.Constant(value=str(op))]):
                yield node.lineno, op


def _reached(name: str, edges: dict[str, set[str]]) -> set[str]:
    """``name``, and all that is loaded for it."""
    found, stack = {name}, [name]
    while stack:
        new = edges.get(stack.pop(), set()) - found
        found |= new
        stack += new
    return found


ROOM_ORDER: dict[str, tuple[str, ...]] = {
    "device": ("loops", "llvm", "", "host", "onednn", "cuda", "local_devices"),
    "graph": (
        "", "collectives", "layouts", "pipeline", "messages", "construction", "resources", "trees",
        "ops.base", "ops.elementwise", "ops.array", "ops.text", "ops.ragged", "ops.lists", "ops.state",
        "derivatives", "ops.linalg", "ops.random", "ops.nn", "ops.collective", "ops.trees",
        "passes.prepare", "passes.optimise", "functions", "text", "ops.surface",
        "passes.placement", "passes.collective", "passes.fusion", "passes",
    ),
    "rendezvous": ("matching", "channel", "local_links", "messages", "mpi", "ucx", "grpc", ""),
    "executor": (
        "ends", "observe", "program", "analysis", "buffers", "kernels", "lists", "lower", "verify", "bind",
        "plan", "partial", "session",
    ),
    "distribute": (
        "parameter_server", "cluster", "resolvers", "elastic", "wire", "machines", "observe", "collectives",
        "master", "connection_manager", "worker", "server", "client", "launch",
        "strategies.values", "strategies.reduce", "strategies.input", "strategies.variables",
        "strategies.core", "strategies.replicas", "strategies.parameter_server", "strategies.kinds",
        "strategies.layouts",
    ),
    "keras": (
        "state", "", "optimizers", "preprocessing", "saving", "engine", "model_graph", "layers",
        "applications", "models", "estimator", "scikit_learn", "backend",
    ),
    "train": ("", "optimizers", "coordination", "checkpoints", "hooks", "sessions", "elastic"),
    "nn": ("rnn_cell", ""),
    "viz": (
        "", "folding", "page_data", "formats.picture", "html", "formats", "export", "overview", "notebook",
    ),
    "cli": ("selftest", ""),
    "tf1": ("", "composed_ops", "graph_import", "training", "debugger"),
}  # fmt: skip
"""The rooms of a package, and modules beside them: each imports only from those before it. "" is what lies in
the package's own folder and is not listed.
"""
MAX_MODULES = 25
"""In one folder: a reader takes in no more at a glance."""

NOT_TENSORFLOWS = {"core", "dtypes", "errors", "python", "typing", "version"}
"""Modules at the top of flowrt whose names TensorFlow 1 does not have, or does not document."""


def _room(module: str, package: str) -> int | None:
    """The place of ``module`` in the order of its package; None for the package itself or an unlisted
    room."""
    inner = module.removeprefix(f"flowrt.{package}").removeprefix(".")
    order = ROOM_ORDER[package]
    listed = [room for room in order if room and f"{inner}.".startswith(f"{room}.")]
    if listed:
        return order.index(max(listed, key=len))
    return order.index("") if "" in order and inner and "." not in inner else None


def check_rooms(modules: Tree) -> list[str]:
    violations = list[str]()
    for module in modules.values():
        package = module.name.split(".")[1] if "." in module.name else ""
        if (
            package not in ROOM_ORDER
            or module.name == f"flowrt.{package}"
            or _is_package(module.name, modules)
        ):
            continue
        here = _room(module.name, package)
        if here is None:
            violations.append(f"{module.name} is in no room of ROOM_ORDER")
            continue
        for found in _inner_imports(module):
            target = resolve(found.target, modules)
            there = _room(target, package) if target.startswith(f"flowrt.{package}.") else None
            if not found.typing_only and there is not None and there > here:
                violations.append(f"{module.at(found.line)} imports {target}, a room further on")
    return violations


def _is_package(name: str, modules: Tree) -> bool:
    return any(other.startswith(f"{name}.") for other in modules)


def _folders(modules: Tree) -> dict[str, list[str]]:
    """The names of the modules and packages in each package."""
    inside: dict[str, list[str]] = {}
    for name in modules:
        package, _, stem = name.rpartition(".")
        if package:
            inside.setdefault(package, []).append(stem)
    return inside


def check_sizes(modules: Tree) -> list[str]:
    sizes = {
        package: sum(not _is_package(f"{package}.{stem}", modules) for stem in stems)
        for package, stems in _folders(modules).items()
    }
    return [f"{package} has {size} modules" for package, size in sizes.items() if size > MAX_MODULES]


def check_contents(modules: Tree) -> list[str]:
    """The docstring of a package is its table of contents."""
    return [
        f"the docstring of {package} does not name {stem}"
        for package, stems in _folders(modules).items()
        if package != "flowrt"
        for stem in stems
        if stem != "__main__"
        and not stem.endswith("_pb2")
        and not re.search(rf"\b{stem}\b", ast.get_docstring(modules[package].tree) or "")
    ]


def check_stems(modules: Tree) -> list[str]:
    """One name, one meaning: two modules of one package of flowrt are never called the same."""
    seen: dict[tuple[str, str], str] = {}
    violations = list[str]()
    for name in modules:
        parts = name.split(".")
        if len(parts) < 3 or _is_package(name, modules):
            continue
        other = seen.setdefault((parts[1], parts[-1]), name)
        if other != name:
            violations.append(f"{name} and {other} have one name")
    return violations


def check_top_level(modules: Tree) -> list[str]:
    """A module at the top is a namespace that TensorFlow has."""
    names = (ROOT / "tests" / "tf1_names.txt").read_text("utf-8").splitlines()
    tensorflows = {re.split(r"\W", name)[0] for name in names}
    return [
        f"{name} is no namespace of TensorFlow's"
        for name in modules
        if name.count(".") == 1 and not _is_package(name, modules)
        if (stem := name.removeprefix("flowrt.")) not in tensorflows | NOT_TENSORFLOWS and stem != "__main__"
    ]


CHECKERS = (
    check_order,
    check_cycles,
    check_local_imports,
    check_libraries,
    check_nothing_executes,
    check_names,
    check_facts,
    check_op_names,
    check_op_look_ups,
    check_rooms,
    check_sizes,
    check_contents,
    check_stems,
    check_top_level,
)
every_checker = pytest.mark.parametrize("check", CHECKERS, ids=lambda check: check.__name__)


# --- flowrt itself --------------------------------------------------------------------------------


@every_checker
def test_flowrt_keeps_its_borders(check: Checker) -> None:
    modules = read_flowrt()
    assert "flowrt.errors" in modules  # the checkers have something to read
    violations = check(modules)
    assert not violations, "\n".join(violations)


def test_import_flowrt_loads_no_optional_library() -> None:
    code = "import flowrt, sys; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True, timeout=200).split()
    assert "flowrt" in loaded
    assert LATE.isdisjoint(loaded)


def test_generated_messages_need_no_newer_protobuf_than_the_project_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (oldest,) = re.findall(r"protobuf>=([\d.]+)", " ".join(project["dependencies"]))
    for path in sorted((ROOT / "flowrt").rglob("*_pb2.py")):
        (needed,) = re.findall(r"Protobuf Python Version: ([\d.]+)", path.read_text("utf-8"))
        assert _version(needed) <= _version(oldest), f"{path.name} is for {needed}: use `make protos`"


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


# --- the checkers themselves ----------------------------------------------------------------------

GOOD = {
    "flowrt": """
from flowrt.errors import OpError
from flowrt.train import Saver
def __getattr__(name):
    import importlib
    return importlib.import_module(f"flowrt.{name}")
""",
    "flowrt.errors": "import os",
    "flowrt.dtypes": "import ml_dtypes; from flowrt.errors import OpError",
    "flowrt.protos": "''",
    "flowrt.protos.graph_pb2": "from google.protobuf import descriptor",
    "flowrt.device": "'spec, host, cuda'",
    "flowrt.device.spec": "from flowrt import errors",
    "flowrt.device.host": "import numpy as np; from flowrt.device import spec",
    "flowrt.device.cuda": "'cuda'",
    "flowrt.device.cuda.cuda": "def open_device(): import cupy, cupyx.jit",
    "flowrt.graph": "'graph, text, ops'",
    "flowrt.graph.graph": """
from typing import TYPE_CHECKING
from flowrt.device.spec import DeviceSpec
from flowrt.protos import graph_pb2
if TYPE_CHECKING:
    from flowrt.graph.text import print_graph
""",
    "flowrt.graph.text": "import ast; from flowrt.graph.graph import Graph; ast.literal_eval('1')",
    "flowrt.graph.ops": "'base, elementwise'",
    "flowrt.graph.ops.base": "'identities'",
    "flowrt.graph.ops.elementwise": "'arithmetic'",
    "flowrt.graph.ops.elementwise.arithmetic": """
from flowrt.graph.ops.base.identities import identity
add = define_op("Add", "x: T, y: T -> T")
""",
    "flowrt.graph.ops.base.identities": """
identity = define_op("Identity", "x: T -> T", vjp=lambda op, dy: [op_def("Add")(dy, dy)])
if node.op.name in ("Const", "NoOp") or tensor.op.name == "x": pass
""",
    "flowrt.rendezvous": "'key'",
    "flowrt.rendezvous.key": "from flowrt.device import DeviceSpec",
    "flowrt.executor": "'session'",
    "flowrt.executor.session": "from flowrt.graph import Graph; from flowrt.rendezvous.key import ParsedKey",
    "flowrt.distribute": "'strategies'; from flowrt.executor.session import Session",
    "flowrt.distribute.strategies": "'kinds'",
    "flowrt.distribute.strategies.kinds": "from flowrt.layers import dense",
    "flowrt.train": "import numpy as np; from flowrt.layers import dense; np.load('x', allow_pickle=False)",
    "flowrt.layers": "from flowrt.graph import Graph",
}
PACKAGES = {name for name in GOOD if any(other.startswith(f"{name}.") for other in GOOD)}


def good_tree(**changed: str) -> Tree:
    """The good modules, with some replaced or added; ``__`` in a keyword stands for a dot."""
    sources = GOOD | {name.replace("__", "."): source for name, source in changed.items()}
    return {name: parse(name, source, is_package=name in PACKAGES) for name, source in sources.items()}


@every_checker
def test_a_checker_accepts_what_is_allowed(check: Checker) -> None:
    assert check(good_tree()) == []


@pytest.mark.parametrize(
    ("check", "module", "source", "expected"),
    [
        (check_order, "errors", "import flowrt.dtypes", "errors:1 imports flowrt.dtypes"),
        (check_order, "dtypes", "from flowrt.device.spec import DeviceSpec", "imports flowrt.device.spec"),
        (check_order, "device.host", "from flowrt.graph.graph import Graph", "imports flowrt.graph.graph"),
        (check_order, "device.host", "from flowrt.protos import graph_pb2", "imports flowrt.protos"),
        (check_order, "device.host", "def f():\n  from flowrt import graph", "host:2 imports flowrt.graph"),
        (check_order, "graph.text", "from flowrt.device.host import Host", "imports flowrt.device.host"),
        (check_order, "graph.text", "from flowrt.device import DeviceSpec", "imports flowrt.device,"),
        (check_order, "graph.text", "from flowrt import rendezvous", "imports flowrt.rendezvous"),
        (check_order, "graph.text", "from ..rendezvous import key", "imports flowrt.rendezvous.key"),
        (check_order, "graph", "from ..rendezvous import key", "which is not left of it"),
        (check_order, "graph.text", "import_module('flowrt.train')", "imports flowrt.train"),
        (check_order, "rendezvous.key", "if T: from flowrt.graph import Graph", "imports flowrt.graph"),
        (check_order, "executor.session", "from flowrt import distribute", "imports flowrt.distribute"),
        (check_order, "distribute", "from flowrt.train import Saver", "imports flowrt.train"),
        (
            check_order,
            "distribute",
            "from flowrt.distribute import strategies",
            "flowrt.distribute.strategies",
        ),
        (check_order, "train", "from flowrt import Graph", "imports flowrt,"),
        (check_order, "train", "import flowrt", "imports flowrt,"),
        (check_cycles, "errors", "import flowrt.dtypes", "flowrt.dtypes -> flowrt.errors -> flowrt.dtypes"),
        (check_cycles, "layers", "import flowrt.train", "flowrt.layers -> flowrt.train -> flowrt.layers"),
        (check_cycles, "device", "import flowrt.graph.text", "flowrt.device -> flowrt.graph.text"),
        (check_cycles, "rendezvous", "import flowrt.executor.session", "flowrt.rendezvous -> "),
        (check_local_imports, "train", "def f(): from flowrt import layers", "inside f()"),
        (check_local_imports, "train", "class A:\n  def f(s): import flowrt.nn", "train:2 imports flowrt.nn"),
        (check_local_imports, "train", "f = lambda: __import__('flowrt.nn')", "inside <lambda>()"),
        (check_local_imports, "layers", "def __getattr__(n): import flowrt.nn", "inside __getattr__()"),
        (check_local_imports, "", "def f(): import flowrt.nn", "inside f()"),
        (check_libraries, "device.host", "import cupy", "only imported by flowrt.device.cuda"),
        (check_libraries, "device.host", "def f():\n  from llvmlite import ir", "host:2 imports llvmlite.ir"),
        (check_libraries, "graph.text", "import cupyx.scipy as s", "imports cupyx.scipy"),
        (
            check_libraries,
            "executor.session",
            "import grpc",
            "only imported by flowrt.rendezvous.grpc.grpc_call",
        ),
        (
            check_libraries,
            "train",
            "import safetensors.numpy",
            "only imported by flowrt.train.checkpoints.shard_file",
        ),
        (
            check_libraries,
            "train",
            "importlib.import_module('opt_einsum')",
            "only imported by flowrt.graph.ops",
        ),
        (check_libraries, "train", "import torch", "flowrt does not depend on it"),
        (check_nothing_executes, "train", "import pickle", "train:1 imports pickle"),
        (check_nothing_executes, "train", "def f():\n  from marshal import loads", "train:2 imports marshal"),
        (check_nothing_executes, "train", "x = eval('1')", "uses eval"),
        (check_nothing_executes, "train", "run = exec", "uses exec"),
        (check_nothing_executes, "train", "np.load('x', allow_pickle=True)", "allows pickle"),
        (check_nothing_executes, "train", "import_module(name)", "imports a computed name"),
        (check_op_names, "executor.session", "x = node.op.name == 'MatMul'", "session:1 asks for MatMul"),
        (check_op_names, "train", "A = ('NoOp', 'Add')\nx = op.name in A", "train:2 asks for Add"),
        (check_op_look_ups, "graph.text", "op_def('Add')", "import it from flowrt.graph.ops.elementwise"),
        (check_names, "graph.utils", "", "flowrt.graph.utils says nothing"),
        (check_names, "common.graph", "", "flowrt.common.graph says nothing"),
        (check_facts, "executor.session", "is_view = node.op.alias is not None", "compares node.op.alias"),
        (check_facts, "graph.text", "def f(op):\n  if None != op.waits: pass", "text:2 compares op.waits"),
        (check_rooms, "graph.node", "from flowrt.graph.text import print_graph", "a room further on"),
        (check_rooms, "executor.loose", "", "flowrt.executor.loose is in no room"),
        (check_contents, "graph.extra", "", "the docstring of flowrt.graph does not name extra"),
        (check_stems, "graph.ops.base.text", "", "flowrt.graph.text have one name"),
        (check_top_level, "plumbing", "", "flowrt.plumbing is no namespace of TensorFlow's"),
    ],
)
def test_a_checker_finds(check: Checker, module: str, source: str, expected: str) -> None:
    name = f"flowrt__{module.replace('.', '__')}" if module else "flowrt"
    violations = check(good_tree(**{name: source}))
    assert any(expected in violation for violation in violations), violations


def test_a_folder_is_not_too_large() -> None:
    many = {f"layers__kind_{number}": "" for number in range(MAX_MODULES + 1)}
    assert check_sizes(good_tree(**{f"flowrt__{name}": source for name, source in many.items()}))
