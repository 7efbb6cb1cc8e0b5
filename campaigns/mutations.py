"""Random mutations of the source, each run against its own package's tests: are the tests strong?

    python campaigns/mutations.py --count 120 --seed 1 --jobs 2

A mutation changes one operator, constant, condition or statement, each kind equally often. It is killed if a test of
its package fails or does not end in time. Survivors are printed, to be looked at: some change nothing that anyone could
see.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/anyorder")
UNTESTED = {"triton_kernels.py"}
"""Runs on CUDA only."""
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
MOST_SECONDS = 300


@dataclass(frozen=True)
class Mutation:
    """One change of one file."""

    file: Path
    line: int
    text: str
    """The file's new text."""
    what: str


def mutations(file: Path) -> list[Mutation]:
    """All mutations of a file, relative to the root."""
    source = (ROOT / file).read_text(encoding="utf-8")
    tree = ast.parse(source)
    annotations = {id(part) for node in ast.walk(tree) for part in _annotation_parts(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in annotations or not hasattr(node, "lineno"):
            continue
        for new, what in _changes(node):
            lines = source.splitlines(keepends=True)
            start, end = (
                _offset(lines, node.lineno, node.col_offset),
                _offset(lines, node.end_lineno, node.end_col_offset),
            )
            data = source.encode()
            text = (data[:start] + new.encode() + data[end:]).decode()
            found.append(Mutation(file, node.lineno, text, what))
    return found


def _offset(lines: list[str], line: int, column: int) -> int:
    """In bytes; `column` counts bytes as well."""
    return sum(len(text.encode()) for text in lines[: line - 1]) + column


def _annotation_parts(node: ast.AST) -> list[ast.AST]:
    roots = [getattr(node, name, None) for name in ("annotation", "returns")]
    return [part for root in roots if isinstance(root, ast.AST) for part in ast.walk(root)]


def _changes(node: ast.AST) -> list[tuple[str, str]]:
    """New source for a node, and what was done."""
    changed: list[tuple[str, str]] = []
    match node:
        case ast.BinOp(op=op) if type(op) in SWAPS and not isinstance(
            node.left, ast.JoinedStr | ast.Name | ast.Subscript
        ):
            changed.append((f"({ast.unparse(ast.BinOp(node.left, SWAPS[type(op)](), node.right))})", "operator"))
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            new = ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)
            changed.append((f"({ast.unparse(new)})", "comparison"))
        case ast.BoolOp(op=op):
            changed.append((f"({ast.unparse(ast.BoolOp(SWAPS[type(op)](), node.values))})", "and/or"))
        case ast.UnaryOp(op=ast.Not()):
            changed.append((f"({ast.unparse(node.operand)})", "not left out"))
        case ast.Constant(value=bool(value)):
            changed.append((str(not value), "constant"))
        case ast.Constant(value=int(value)):
            changed.append((str(value + 1), "constant"))
        case ast.If(test=test) | ast.IfExp(test=test) if isinstance(node, ast.IfExp):
            changed.append((f"({ast.unparse(ast.IfExp(test, node.orelse, node.body))})", "branches swapped"))
        case ast.Assign() | ast.AugAssign() if node.col_offset >= 8 and isinstance(node, ast.AugAssign):
            changed.append(("pass", "statement left out"))
    return changed


def killer(mutation: Mutation) -> str:
    """The test that notices; empty if none does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "recipes", "examples", "docs", "campaigns", "benchmarks"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("bundled", "_build", "__pycache__"))
        (copy / SOURCE / "bundled").symlink_to(ROOT / SOURCE / "bundled")
        shutil.copy(ROOT / "pyproject.toml", copy)
        (copy / mutation.file).write_text(mutation.text, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests_of(mutation.file)]
        for those in ("not slow and not browser", "slow and not browser"):
            try:
                run = subprocess.run(
                    [*command, "-m", those],
                    cwd=copy,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=MOST_SECONDS,
                )
            except subprocess.TimeoutExpired:
                return f"no end within {MOST_SECONDS} s"
            if run.returncode not in (0, 5):  # 5: there is no such test
                failed = re.findall(r"^_{3,} (.+?) _{3,}$", run.stdout, re.MULTILINE)
                return failed[0] if failed else run.stdout[-200:]
        return ""


def tests_of(file: Path) -> list[str]:
    """The tests of a file's package, those named after the file first."""
    parts = file.relative_to(SOURCE).parts
    named = sorted(str(one.relative_to(ROOT)) for one in ROOT.glob(f"tests/**/test_{file.stem}.py"))
    folder = f"tests/{parts[0]}" if len(parts) > 1 else "tests/test_decoder.py"
    return list(dict.fromkeys([*named, folder, "tests/test_decoder.py", str(file)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    files = [file.relative_to(ROOT) for file in sorted((ROOT / SOURCE).rglob("*.py")) if file.name not in UNTESTED]
    every = [mutation for file in files for mutation in mutations(file)]
    by_kind: dict[str, list[Mutation]] = {}
    for mutation in every:
        by_kind.setdefault(mutation.what, []).append(mutation)
    kinds = generator.choices(sorted(by_kind), k=options.count)
    chosen = [by_kind[kind].pop(generator.randrange(len(by_kind[kind]))) for kind in kinds]
    survivors = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for number, (mutation, test) in enumerate(zip(chosen, pool.map(killer, chosen), strict=True), start=1):
            survivors += not test
            print(f"{mutation.file}:{mutation.line} {mutation.what}: {test or 'SURVIVED'}")
            print("   ", mutation.text.splitlines()[mutation.line - 1].strip())
            print(f"{number - survivors} of {number} killed", flush=True)


if __name__ == "__main__":
    main()
