"""Prints the sizes of modules and functions of src/, for seeing drift."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"


def main() -> None:
    modules, functions, undocumented, lines = [], [], 0, 0
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        parsed = ast.parse(text)
        count = text.count("\n")
        lines += count
        modules.append((count, str(path.relative_to(SOURCE))))
        undocumented += bool(text.strip()) and ast.get_docstring(parsed) is None
        functions += [
            (node.end_lineno - node.lineno + 1, f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}")
            for node in ast.walk(parsed)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
        ]
    for title, sizes in (("modules", sorted(modules)), ("functions", sorted(functions))):
        half, most = sizes[len(sizes) // 2][0], sizes[int(len(sizes) * 0.9)][0]
        print(f"{title}: {len(sizes)}, lines p50 {half}, p90 {most}, longest:")
        for size, name in sizes[-6:][::-1]:
            print(f"  {size:5d}  {name}")
    print(f"{lines} lines, {undocumented} modules without a docstring")


if __name__ == "__main__":
    main()
