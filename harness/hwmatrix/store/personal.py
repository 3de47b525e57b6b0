"""Finds and shortens personal paths in published data, and removes the serial numbers of GPUs.

Only paths below the usual roots of user files are shortened. Paths inside containers (``/opt/venv/...``, ``/hwmatrix/...``), of the system
(``/proc/...``) and of the machines on which frameworks were built are not personal, and names of graph nodes (``/model/layers.0/MatMul``)
only look like paths. In a command, every absolute path is shortened: the user typed it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.json_text import read_json
from hwmatrix.records import Plan, plan_from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb

_ROOTS: Final = (
    *("root", "tmp", "var/tmp", "var/folders", "private", "work", "workspace", "workspaces", "github", "data", "scratch", "mnt"),
    *("Volumes", "srv", "nfs", "gpfs", "lustre"),
)
_PART: Final = r"[^\s/\\'\"`<>|:;,()\[\]{}]+"
_BEGIN: Final = r"(?:(?<![\w.…~/\\])|(?<=file://))"
_HOME: Final = rf"(?:/var)?/(?:home|Users)(?:/{_PART})+|[A-Za-z]:[\\/]+Users(?:[\\/]+{_PART})+"
_PERSONAL: Final = re.compile(rf"{_HOME}|{_BEGIN}/(?:{'|'.join(_ROOTS)})(?:/{_PART})+")
_HOME_ITSELF: Final = re.compile(rf"(?:(?:/var)?/(?:home|Users)/|[A-Za-z]:[\\/]+Users[\\/]+){_PART}")
_IN_COMMAND: Final = re.compile(rf"{_BEGIN}(?:/{_PART}|[A-Za-z]:[\\/]+{_PART})(?:[\\/]+{_PART})*")
_TEMPORARY: Final = ("/tmp/hwmatrix-", "/tmp/ort.")  # noqa: S108 - files that a cell makes, with random names
_SITE: Final = "site-packages/"
_SNAPSHOT: Final = "/snapshots/"


def without_personal(text: str) -> str:
    """A text with personal paths cut down to their last parts: ``…/model.onnx``, ``…/site-packages/torch/nn/modules.py``."""
    return _PERSONAL.sub(lambda found: _shortened(found[0]), text)


def command_without_personal(command: str) -> str:
    """A command with every absolute path cut down to its last part, as if it was typed in the parent folder."""
    return without_personal(_IN_COMMAND.sub(lambda found: "~" if _HOME_ITSELF.fullmatch(found[0]) else _last_part(found[0]), command))


def plan_without_personal(plan: Plan) -> Plan:
    """A plan without personal paths in its command and in all its texts."""
    cleaned = dataclasses.replace(plan, command=command_without_personal(plan.command))
    return plan_from_json(_clean_json(to_json(cleaned)), where=f"the plan of run {plan.run_id}")


def clean(connection: duckdb.DuckDBPyConnection) -> int:
    """Remove personal paths from every text of a database; return the number of distinct texts that changed."""
    columns = connection.execute(
        "SELECT c.table_name, c.column_name, c.data_type FROM duckdb_columns() c JOIN duckdb_tables() t USING (database_name, table_name) "
        "WHERE database_name = current_database() AND c.data_type IN ('VARCHAR', 'VARCHAR[]', 'JSON') ORDER BY ALL"
    ).fetchall()
    changed = 0
    for table, column, kind in columns:
        rule = _RULES.get((table, column), _clean_json if kind == "JSON" else without_personal)
        texts = connection.execute(f'SELECT DISTINCT "{column}" FROM {table} WHERE "{column}" IS NOT NULL').fetchall()  # noqa: S608
        for (before,) in texts:
            after = [rule(each) for each in before] if isinstance(before, list) else rule(before)
            if after != before:
                update = f'UPDATE {table} SET "{column}" = CAST(? AS {kind}) WHERE "{column}" = CAST(? AS {kind})'  # noqa: S608
                connection.execute(update, [after, before])
                changed += 1
    return changed


def _clean_json(text: str) -> str:
    """A JSON document without personal paths; the same bytes if it has none."""
    before = read_json(text)
    after = _clean_value(before)
    return text if after == before else json.dumps(after, ensure_ascii=False, separators=(",", ":"))


def _clean_features(text: str) -> str:
    """What was detected of a piece of hardware, without the identifier that NVIDIA's and AMD's drivers give every single GPU."""
    features = read_json(text)
    gpus = features.get("gpus")
    if not isinstance(gpus, list) or not any("uuid" in gpu for gpu in gpus if isinstance(gpu, dict)):
        return _clean_json(text)
    kept = [{name: value for name, value in gpu.items() if name != "uuid"} if isinstance(gpu, dict) else gpu for gpu in gpus]
    return _clean_json(json.dumps(features | {"gpus": kept}, ensure_ascii=False, separators=(",", ":")))


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return without_personal(value)
    if isinstance(value, list):
        return [_clean_value(each) for each in value]
    if isinstance(value, dict):
        return {key: _clean_value(each) for key, each in value.items()}
    return value


def _clean_plan(text: str) -> str:
    return to_json(plan_without_personal(plan_from_json(text, where="a plan")))


_RULES: Final[dict[tuple[str, str], Callable[[str], str]]] = {
    ("runs", "command"): command_without_personal,
    ("cells", "command"): command_without_personal,
    ("runs", "plan"): _clean_plan,
    ("detections", "features"): _clean_features,
}
"""Columns with a rule of their own."""


def _shortened(path: str) -> str:
    """A shortened path: from the packages' folder or the hub's snapshot on, else only its last part."""
    if _HOME_ITSELF.fullmatch(path):
        return "~"
    if path.startswith(_TEMPORARY):
        return path
    for begin in (_SITE, _SNAPSHOT):
        if begin in path:
            return f"…/{path[path.rindex(begin) :].lstrip('/')}"
    return f"…/{_last_part(path)}"


def _last_part(path: str) -> str:
    """The last part of a path."""
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]
