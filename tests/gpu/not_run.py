"""Say what suites on the targets cpu and cuda executed, and of what they did not, why. Exit code 6: nothing was executed on cuda."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

UNEXECUTED: Final = frozenset({"not_run", "unavailable", "factory_error", "infra_error"})
NONE_ON_GPU: Final = 6


def _name(cell: dict[str, Any]) -> str:
    """The model and the precision, and how many tokens it generates."""
    settings = cell["settings"]
    generates = f" generating {settings['new_tokens']}" if settings["new_tokens"] else ""
    return f"{cell['model']} {settings['dtype']}{generates}"


def told(folder: Path, suite: str) -> tuple[list[str], int]:
    """Lines about one suite, and how many of its cells were executed on cuda."""
    file = folder / suite / "matrix.json"
    if not file.exists():
        return [f"{suite}: no results: it failed, or there was no time left for it"], 0
    cells: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cells"]
    executed = Counter((cell["target"], cell["status"]) for cell in cells if cell["status"] not in UNEXECUTED)
    lines = [f"{suite}: {count} {status} on {target}" for (target, status), count in sorted(executed.items())]
    alike: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for cell in cells:
        if cell["status"] in UNEXECUTED:
            reason = (cell["error"] or {}).get("message") or "it was not reached"
            alike[cell["target"], cell["status"], reason].append(_name(cell))
    for (target, status, reason), names in alike.items():
        lines.append(f"{suite}: not run on {target}, {status}: {', '.join(names)}: {reason}")
    return lines, sum(count for (target, _), count in executed.items() if target == "cuda")


def main(folder: Path, suites: list[str]) -> int:
    """Print the lines of all suites; give the exit code."""
    on_gpu = 0
    for suite in suites:
        lines, count = told(folder, suite)
        print("\n".join(lines))  # noqa: T201 - its output
        on_gpu += count
    return 0 if on_gpu else NONE_ON_GPU


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
