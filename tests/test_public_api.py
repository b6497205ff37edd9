"""What users may rely on: the names, their types, and what an installation without extras needs."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import turnkeep
import typing_api
from turnkeep import errors

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

CORE = {"numpy", "msgspec", "orjson", "httpx", "jsonschema", "typer", "rich"}
"""What an installation without extras brings along."""

EXTRAS = {
    "serve": {"starlette", "uvicorn"},
    "nooa": {"nooa"},
    "gym": {"turnkeep", "nemo-gym"},
    "atif": {"atif"},
    "parquet": {"pyarrow"},
    "report": {"jinja2"},
}
"""What each extra brings along; `demo` is the first two, and `gym` has `nooa` in it."""

ALSO_THERE = {
    "export": {"atif", "pyarrow", "pydantic"},
    "gym": {"nemo_gym", "nooa", "aiohttp", "starlette", "pydantic", "pydantic_core", "jsonschema_specifications"},
    "history": {"referencing", "jsonschema_specifications"},
    "nooa": {"pydantic"},
    "report": {"markupsafe", "starlette", "uvicorn"},
    "testing": {"pytest", "hypothesis"},
}
"""What a folder may use besides what the extra of its name brings: the extras of one format, what those packages need
themselves, what anybody who tests has."""


def names_of(requirements: list[str]) -> set[str]:
    """The packages that requirements name."""
    return {re.match(r"[A-Za-z0-9_.-]+", requirement)[0] for requirement in requirements}  # type: ignore[index]


def third_party_imports() -> Iterator[tuple[str, str, str]]:
    """Every import of somebody else's package: our package, the file, and the name."""
    source = ROOT / "src" / "turnkeep"
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in found:
                top = name.split(".")[0]
                if top != "turnkeep" and top not in sys.stdlib_module_names:
                    yield path.relative_to(source).parts[0], f"{path.name}:{node.lineno}", top  # type: ignore[attr-defined]


def test_all_is_sorted_and_is_what_can_be_imported() -> None:
    """`__all__` names every public name once, in order, and nothing else is there."""
    public = {
        name for name, value in vars(turnkeep).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert turnkeep.__all__ == sorted(public)


def test_every_error_is_public_and_in_the_tree() -> None:
    """Whoever catches an error can import it from the top, and finds it in the tree that the module draws."""
    assert set(errors.__all__) <= set(turnkeep.__all__)
    drawn = re.findall(r"^ {4}[│├└─ ]*(\w+)", errors.__doc__ or "", re.MULTILINE)
    assert sorted(drawn) == sorted(errors.__all__)
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert kinds == set(errors.__all__)


def test_the_usage_example_runs(tmp_path: Path) -> None:
    """What lint checks the types of is also true when it is run."""
    typing_api.main(tmp_path)


def test_types_are_shipped() -> None:
    """The package is marked as typed."""
    assert (Path(turnkeep.__file__).parent / "py.typed").exists()


def test_the_core_depends_on_the_declared_few() -> None:
    """An installation without extras brings seven packages, each extra its own, and `demo` two extras."""
    assert names_of(PROJECT["dependencies"]) == CORE
    extras = PROJECT["optional-dependencies"]
    assert {name: names_of(extras[name]) for name in EXTRAS} == EXTRAS
    assert extras["demo"] == ["turnkeep[serve,nooa]"]
    assert set(extras) == {*EXTRAS, "demo"}


def test_an_extra_is_imported_in_its_folder_alone() -> None:
    """Everything imported is declared, and what an extra brings is imported in the package of its name."""
    found = list(third_party_imports())
    assert {name for _, _, name in found} >= CORE | {"starlette", "uvicorn", "nooa"}  # else nothing was looked at
    wrong = [
        f"{place} imports {name}"
        for package, place, name in found
        if name not in CORE | EXTRAS.get(package, set()) | ALSO_THERE.get(package, set())
    ]
    assert not wrong, "\n".join(wrong)
