"""A run whose every text is an attack: markup, scripts, terminal escapes, texts that reorder others, and very long ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from factory_rows import Database, steady, unmeasured

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT: Final = "</script><script>window.__pwned = 1</script>"
IMAGE: Final = '"><img src=x onerror="window.__pwned = 2"><svg onload=window.__pwned=3>'
ATTRIBUTE: Final = "' onmouseover='window.__pwned = 4' autofocus onfocus='window.__pwned = 4' x='"
LINK: Final = "[a](javascript:window.__pwned=5) <a href=javascript:window.__pwned=5>b</a> {{constructor.constructor('window.__pwned=6')()}}"
COMMENT: Final = "<!-- <script> --> ]]> <!--<script>"
ANSI: Final = "\x1b[31mred\x1b[0m \x1b]8;;http://example.invalid\x07link\x1b]8;;\x07 \x00\x07\x08"
REORDERED: Final = "gnp.\u202etxt.exe \u2066isolated\u2069 \u200bzero\ufeff"
LINES: Final = "one\u2028two\u2029three\x85four"
LATIN: Final = b"caf\xe9 \xff\xfe".decode("utf-8", "replace")
ATTACKS: Final = (SCRIPT, IMAGE, ATTRIBUTE, LINK, COMMENT, ANSI, REORDERED, LINES, LATIN)
LONG: Final = "x" * 1_000_000 + SCRIPT
TRACEBACK: Final = (
    "Traceback (most recent call last):\n" + '  File "a.py", line 1, in <module>\n    boom(<\'>&)\n' * 20_000 + f"Error: {SCRIPT}\n"
)


def hostile_rows(path: Path) -> Path:
    """Write the database and give its path: each attack as a model that passes, as one that fails, and as everything a shard says."""
    everything = " ".join(ATTACKS).replace("\x00", "")
    with Database(path) as database:
        database.run(command=everything, hwmatrix_version=IMAGE, commit_id=SCRIPT)
        names = {"image": SCRIPT, "image_digest": IMAGE, "interpreter": everything, "canary_detail": everything, "host": ATTRIBUTE}
        packages = json.dumps({SCRIPT: IMAGE, "torch": SCRIPT})
        for shard, target in (("s-cpu", "cpu"), ("s-bad", IMAGE)):
            database.shard(shard, target, versions=packages, packages=packages, **names)
            database.detection(shard, hardware_type=SCRIPT, name=everything, features=json.dumps({SCRIPT: everything, "list": [IMAGE]}))
        for number, attack in enumerate((*ATTACKS, LONG)):
            name = attack.replace("\x00", "")
            plan = {"hub_id": name, "architecture": name, "cell_key": f"{name}/good{number}"}
            facts = {"placement_detail": name, "method": name, "command": f"hwmatrix matrix --models {name}"}
            database.cell(database.plan(f"good{number} {name}", "cpu", **plan), "s-cpu", wall=steady(2.0), **facts)
            facts |= {"message": f"{name}\n{name}", "traceback": TRACEBACK if number == 0 else name, "error_type": name, "needs": [name]}
            plan |= {"cell_key": f"{name}/bad{number}", "backend": "cpu"}
            database.cell(database.plan(f"bad{number} {name}", IMAGE, **plan), "s-bad", **(unmeasured("error") | facts))
        database.plan("absent", "gone", unavailable=everything, backend="cuda")
        database.plan("unbuildable", "cpu", unbuildable=everything)
        database.insert("rejected", {"run_id": None, "file": SCRIPT, "reason": everything, "rejected_at": "2026-01-01"})
    return path
