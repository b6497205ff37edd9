"""The shape of the code, held by reading it: what may import what, how long things may be, what every name must say."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "turnkeep"

BELOW = {
    "errors": (),
    "wire": ("errors",),
    "history": ("errors", "wire"),
    "archive": ("errors", "wire", "history"),
    "store": ("errors",),
    "rollout": ("errors", "wire", "history", "archive", "store"),
    "check": ("errors", "wire", "history", "archive", "store", "rollout"),
    "report": ("errors", "wire", "history", "archive", "store", "rollout", "check"),
    "export": ("errors", "wire", "history", "archive", "store", "rollout", "check"),
    "serve": ("errors",),
    "testing": ("errors", "wire", "history", "archive", "store", "rollout"),
    "nooa": ("errors", "wire", "history", "archive", "store", "rollout"),
    "gym": ("errors", "wire", "history", "archive", "store", "rollout", "nooa"),
    "cli": ("errors", "wire", "history", "archive", "store", "rollout", "export", "check", "report", "serve", "nooa"),
    "turnkeep": ("errors", "wire", "history", "archive", "store", "rollout", "check", "export"),
    "__main__": ("cli",),
}
"""What each package may import of the others, the lowest first; `turnkeep` is the public `__init__`."""

ALSO = {("store", "turnkeep.wire.sha")}
"""Single modules that a package may import beyond the table: a store sees keys and bytes, and their digest."""

PURE = ("wire", "history", "archive")
"""Packages that do no I/O."""

IO_MODULES = frozenset(
    {"asyncio", "fcntl", "glob", "http", "httpx", "logging", "os", "pathlib", "shutil", "signal", "socket"}
    | {"sqlite3", "subprocess", "tempfile", "time", "urllib"}
)
IO_CALLS = frozenset({"open", "print", "input"})

ADAPTERS = ("nooa", "gym")
HEAVY = ("nooa", "litellm", "nemo_gym")
"""Packages whose import takes seconds."""

BROAD = ("Exception", "BaseException")
BROAD_EXCEPTS = frozenset({"turnkeep.gym.service", "turnkeep.rollout.outcome"})
"""Modules that may catch every exception without raising it again: what runs agents, and what words their errors."""

LONGEST_MODULE, LONGEST_FUNCTION = 500, 50


class Import(NamedTuple):
    """One import: of what, on which line, and whether it is run when the module is imported."""

    module: str
    line: int
    lazy: bool


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("turnkeep", *path.relative_to(SOURCE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def package(module: str) -> str:
    """`turnkeep.wire.json` is of `wire`."""
    return module.split(".")[1] if "." in module else "turnkeep"


def imports(tree: ast.AST, *, lazy: bool = False) -> Iterator[Import]:
    """Every import below `tree`; those in a function, or for the type checker alone, are lazy."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports here are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield Import(whole if whole in modules() else str(node.module), node.lineno, lazy)
        else:
            checking = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from imports(node, lazy=lazy or checking or inside)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function and method below `tree`, with its dotted name."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{node.name}" if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, f"{name}." if name else prefix)


def nothing(found: Iterable[str]) -> None:
    """Fail with what was found, a line each."""
    lines = list(found)
    assert not lines, "\n" + "\n".join(lines)


def test_imports_point_down_only() -> None:
    """A package imports only what the table says, also inside functions and for the type checker."""
    nothing(
        f"{module}:{each.line} imports {each.module}"
        for module, tree in modules().items()
        for each in imports(tree)
        if each.module.split(".")[0] == "turnkeep"
        and package(each.module) not in (package(module), *BELOW[package(module)])
        and (package(module), each.module) not in ALSO
    )


def test_the_table_of_layers_has_no_cycle() -> None:
    """What a package may import stands above it in the table."""
    names = list(BELOW)
    assert all(names.index(below) < names.index(name) for name, all_below in BELOW.items() for below in all_below)
    nothing(f"{module} is in no layer" for module in modules() if package(module) not in BELOW)


def test_modules_import_each_other_in_no_circle() -> None:
    """Following imports, lazy ones too, never leads back to where it began."""
    graph = {module: {each.module for each in imports(tree)} & set(modules()) for module, tree in modules().items()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in sorted(graph[module] - {module}):
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_wire_history_and_archive_do_no_io() -> None:
    """They import nothing that reads or writes, and neither open nor print."""
    trees = {module: tree for module, tree in modules().items() if package(module) in PURE}
    nothing(
        f"{module}:{each.line} imports {each.module}"
        for module, tree in trees.items()
        for each in imports(tree)
        if each.module.split(".")[0] in IO_MODULES
    )
    nothing(
        f"{module}:{node.lineno} calls {node.func.id}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IO_CALLS
    )


def test_what_takes_seconds_is_imported_by_its_adapter_alone() -> None:
    """Only the adapters import nooa and nemo_gym; others import the adapters inside functions."""
    nothing(
        f"{module}:{each.line} imports {each.module}"
        for module, tree in modules().items()
        for each in imports(tree)
        if package(module) not in ADAPTERS
        and (each.module.split(".")[0] in HEAVY or (package(each.module) in ADAPTERS and not each.lazy))
    )
    nothing(
        f"{module}:{each.line} imports {each.module}"
        for module, tree in modules().items()
        for each in imports(tree)
        if each.module.split(".")[0] == "nemo_gym" and (package(module) != "gym" or not each.lazy)
    )


def test_modules_are_of_a_readable_length() -> None:
    """No module has more than 500 lines, no function more than 50."""
    for path in SOURCE.rglob("*.py"):
        length = len(path.read_text(encoding="utf-8").splitlines())
        assert length <= LONGEST_MODULE, f"{path.name} has {length} lines"
    nothing(
        f"{module}.{name} has {length} lines"
        for module, tree in modules().items()
        for name, node in functions(tree)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    )


def test_nothing_swallows_every_exception() -> None:
    """A handler of everything raises again, or its module is named in the list here."""
    nothing(
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and _is_broad(node)
        and not any(isinstance(each, ast.Raise) for each in ast.walk(node))
        and module not in BROAD_EXCEPTS
    )


def _is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(each is None or (isinstance(each, ast.Name) and each.id in BROAD) for each in caught)


def test_public_names_say_what_they_are() -> None:
    """Every module, and every public class, function and method, has a docstring."""
    nothing(module for module, tree in modules().items() if not ast.get_docstring(tree) and tree.body)
    nothing(
        f"{module}.{name}"
        for module, tree in modules().items()
        for name, node in _public(tree)
        if not ast.get_docstring(node)
    )


def _public(
    tree: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _public(node, f"{prefix}{node.name}.")


@pytest.mark.parametrize(
    ("code", "light"),
    [
        ("import turnkeep", "numpy httpx sqlite3 orjson jsonschema typer rich nooa starlette uvicorn pydantic"),
        (
            "import sys; sys.argv = ['turnkeep', '--help']\nfrom turnkeep.cli.main import main\n"
            "try: main()\nexcept SystemExit: pass",
            "nooa numpy starlette uvicorn httpx pydantic",
        ),
    ],
    ids=["import turnkeep", "turnkeep --help"],
)
def test_what_is_heavy_is_imported_when_it_is_used(code: str, light: str) -> None:
    """Importing the library, or asking the command for help, leaves the heavy packages alone."""
    report = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True, timeout=60)
    assert set(json.loads(done.stderr.splitlines()[-1])) & set(light.split()) == set()
