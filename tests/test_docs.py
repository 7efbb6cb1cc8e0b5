"""docs/architecture.md is true: imports point one way. The tutorial runs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import anyorder

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anyorder"
LAYERS = [
    {"errors"},
    {"records"},
    {"files", "device", "progress", "plugins", "registry", "web"},
    {"cluster"},
    {"data", "memory"},
    {"models"},
    {"orders"},
    {"decoding"},
    {"tasks"},
    {"decoder"},
    {"cluster_decoder"},
    {"evaluation"},
    {"analysis"},
    {"training", "report", "app", "lm_eval"},
    {"learning"},
    {"reproduce"},
    {"cli"},
]
"""From below to above: a package imports only from layers below its own."""
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer}
FLAG = re.compile(r"(?<![\w-])--[a-z]")


def module_files() -> list[Path]:
    return sorted(file for file in SOURCE.rglob("*.py") if file.parent != SOURCE or file.stem[0] != "_")


def package_of(file: Path) -> str:
    """The folder under src/anyorder that a file is in, or its own name."""
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_packages(file: Path) -> Iterator[str]:
    """The packages of anyorder that a file imports, inside of functions and for type checking too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            modules = (
                [f"anyorder.{alias.name}" for alias in node.names] if node.module == "anyorder" else [node.module or ""]
            )
        for module in modules:
            top, _, rest = module.partition(".")
            if top == "anyorder":
                yield rest.partition(".")[0]


def test_every_package_has_a_layer() -> None:
    assert {package_of(file) for file in module_files()} == set(LEVEL)


@pytest.mark.parametrize("package", sorted(LEVEL))
def test_imports_point_one_way(package: str) -> None:
    for file in module_files():
        if package_of(file) != package:
            continue
        for imported in set(imported_packages(file)) - {package, "__version__"}:
            assert LEVEL[imported] < LEVEL[package], f"{file.relative_to(SOURCE)} imports {imported}"


def test_data_needs_no_torch() -> None:
    for file in (SOURCE / "data").glob("*.py"):
        assert not re.search(r"^\s*(import|from) torch\b", file.read_text(encoding="utf-8"), re.MULTILINE), file


def test_no_module_below_the_command_line_names_a_flag() -> None:
    """Neither in messages nor in names; docstrings may say which verb calls a function."""
    for file in module_files():
        if package_of(file) == "cli":
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                assert not FLAG.search(node.value), f"{file.relative_to(SOURCE)}, line {node.lineno}: {node.value!r}"


def test_reference_covers_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    modules = set(re.findall(r"automodule:: anyorder\.([\w.]+)", text))
    names = set(re.findall(r"auto(?:function|class):: anyorder\.(\w+)\n", text))
    missing = [name for name, module in anyorder._MODULES.items() if name not in names and module not in modules]
    assert missing == []


def test_glossary_explains_five_words() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["Order", "Step", "Trajectory", "Canvas", "Signature"]


@pytest.mark.slow
def test_tutorial(tmp_path: Path) -> None:
    """Every cell runs, in a kernel of its own."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
