"""Reads assignments from a Python file without executing it: packages store their versions and build options in such files."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def constants(path: Path) -> dict[str, Any]:
    """Return the constants assigned at the top level of a file by name; empty if it cannot be read or is not Python."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, Any] = {}
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets if isinstance(node, ast.Assign) else []
        value = node.value if isinstance(node, ast.AnnAssign | ast.Assign) else None
        if isinstance(value, ast.Constant):
            found |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}
    return found
