"""A shard whose content was changed is rejected under its name, or the change is harmless. No other row changes; reports can be read."""

from __future__ import annotations

import enum
import json
import shutil
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest

from hwmatrix.basics.files import sha256_of, write_atomically
from hwmatrix.records import Classification, Detection, Family, OperatorResult, Status, vocabulary
from hwmatrix.report.markdown import matrix_md
from hwmatrix.report.rows import read
from hwmatrix.report.write import rendered
from hwmatrix.store.domains import with_types
from hwmatrix.store.merge import COPIED, merge
from hwmatrix.store.shard import ShardWriter
from hwmatrix.store.sidecar import sidecar_path

if TYPE_CHECKING:
    from pathlib import Path

PLAN = make.plan()
OWN, OTHER, GOOD = "aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"
WHEN = "2026-01-02T03:04:05.000000"
INVALID = {
    "Number": ("'NaN'", "'inf'", "-1e308"),
    "Amount": ("-0.5", "'NaN'", "'inf'", "1e308"),
    "Mebibytes": ("-1", "1e13"),
    "Share": ("1.5", "-0.5", "'NaN'"),
    "Count": ("-1",),
    "LargeCount": ("-1",),
    "Time": ("TIMESTAMP '0001-01-01'", "TIMESTAMP 'infinity'"),
    "Facts": ("'[1]'", "'null'", "'1'"),
    "Versions": ("'[1]'", """'{"torch": 3}'""", """'{"torch": null}'""", """'{"torch": {"a": "1"}}'"""),
    "Texts": ("['a', NULL]",),
    "Counts": ("[1, -1]", "[1, NULL]"),
    "Amounts": ("[1, -1]", "[1, NULL]", "['NaN'::DOUBLE]", "['inf'::DOUBLE]", "[1e308]"),
}
"""Values that a column of a domain must not have. Other domains are closed lists."""
VALID = {
    "Number": ("-1.5", "0"),
    "Amount": ("0", "1e99"),
    "Mebibytes": ("0", "1e12"),
    "Share": ("0", "1"),
    "Count": ("0",),
    "LargeCount": ("9000000000",),
    "Time": (f"TIMESTAMP '{WHEN}'",),
    "Facts": ("'{}'", """'{"a": [1]}'"""),
    "Versions": ("'{}'", """'{"torch": "2.13.0", "a.b": ""}'"""),
    "Texts": ("[]", "['a']"),
    "Counts": ("[]", "[0, 1]"),
    "Amounts": ("[]", "[0, 1.5]"),
}


def write(folder: Path, target: str, shard_id: str) -> None:
    """A complete shard with rows in every table."""
    with ShardWriter(folder, PLAN, make.identity(target, shard_id)) as shard:
        shard.set_canaries(ok=True, detail=None)
        shard.add_detections(
            [Detection(hardware_type=target, available=True, name="a", features={"cores": 2}, reason=None, detected_at=WHEN)]
        )
        known = Classification(
            model_name="bert",
            architecture="bert",
            model_class=None,
            family=Family.EMBEDDING,
            subfamily=None,
            structure=None,
            confidence=0.5,
            evidence="class",
            source="a test",
        )
        shard.add_classifications([known])
        test = OperatorResult(
            target=target,
            test="test_abs",
            operator="Abs",
            domain="",
            opset=13,
            expanded=False,
            status=Status.PASS,
            on_target=1.0,
            max_error=0.0,
            wall_ms=1.0,
        )
        shard.add_operators([test])
        for cell in PLAN.cells:
            if cell.target == target:
                shard.add_cell(make.result(cell), command="hwmatrix matrix")
        shard.seal()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a shard for each of two targets."""
    folder = make.run_folder(tmp_path_factory.mktemp("template"), PLAN)
    write(folder / "shards", "cpu", OWN)
    write(folder / "shards", "openvino", OTHER)
    return folder


def mutated(template: Path, folder: Path, shard_id: str, *statements: str) -> None:
    """Add a copy of the cpu shard with another id, and these changes, as somebody would write it who wants it to be merged."""
    path = folder / "shards" / f"cpu-{shard_id}.duckdb"
    source = template / "shards" / f"cpu-{OWN}.duckdb"
    shutil.copy(source, path)
    with duckdb.connect(str(path)) as connection:
        for table in COPIED:
            names = [name for (name,) in connection.execute(f"SELECT column_name FROM (DESCRIBE {table})").fetchall()]  # noqa: S608
            new = [f"replace({name}, '{OWN}', '{shard_id}') AS {name}" for name in ("shard_id", "cell_id") if name in names]
            connection.execute(f"CREATE TABLE plain AS SELECT * REPLACE ({', '.join(new)}) FROM {table}")  # noqa: S608
            connection.execute(f"DROP TABLE {table}; ALTER TABLE plain RENAME TO {table}")  # without any constraint
        for statement in statements:
            connection.execute(statement)
    sidecar = json.loads(sidecar_path(source).read_text(encoding="utf-8"))
    write_atomically(sidecar_path(path), json.dumps(sidecar | {"shard_id": shard_id, "sha256": sha256_of(path)}))


def value(table: str, column: str, expression: str) -> str:
    """SQL that changes a column, its type included."""
    changed = f"CREATE TABLE plain AS SELECT * REPLACE ({expression} AS {column}) FROM {table}"  # noqa: S608
    return f"{changed}; DROP TABLE {table}; ALTER TABLE plain RENAME TO {table}"


OF_ANOTHER = {
    "target": "'openvino'",
    "shard_id": f"'{OTHER}'",
    "run_id": "'another'",
    "cell_id": f"concat('{OTHER}/model/', row_number() OVER ())",
}
FOREIGN = {
    f"{table} with another's {column}": value(table, column, OF_ANOTHER[column])
    for table, columns in {
        "shards": ("target", "shard_id", "run_id"),
        "cells": ("target", "shard_id", "run_id", "cell_id"),
        "detections": ("shard_id",),
        "operators": ("shard_id", "target"),
        "classifications": ("shard_id",),
        "stages": ("cell_id",),
        "outputs": ("cell_id",),
        "samples": ("cell_id",),
    }.items()
    for column in columns
}
REJECTED = FOREIGN | {
    "all of another target": "; ".join(
        (value("cells", "target", OF_ANOTHER["target"]), value("cells", "cell_key", "replace(cell_key, 'cpu', 'openvino')"))
    ),
    "a retry of another target's cell": "; ".join(
        (value("cells", "role", "'adapted'"), value("cells", "adapted_from", "'bert/tiny/openvino'"))
    ),
    "an unknown status": value("cells", "status", "'banana'"),
    "an unknown severity": value("cells", "severity", "'x'"),
    "an unknown isolation": value("shards", "isolation", "'x'"),
    "no status": value("cells", "status", "NULL::VARCHAR"),
    "endless memory": value("cells", "peak_mb", "'inf'::DOUBLE"),
    "a negative time": value("samples", "wall_ns", "-1::BIGINT"),
    "the first year": value("cells", "started_at", "TIMESTAMP '0001-01-01'"),
    "the far future": value("cells", "started_at", "TIMESTAMP '2999-01-01'"),
    "hardware of the future": value("detections", "detected_at", "TIMESTAMP '2999-01-01'"),
    "versions in a list": value("shards", "versions", "'[1]'::JSON"),
    "versions that are no texts": value("shards", "versions", """'{"torch": {"a": [1, null]}, "x": null}'::JSON"""),
    "a text as a number": value("cells", "batch", "'one'"),
    "a number as a text": value("cells", "message", "1"),
    "floats as whole numbers": value("samples", "wall_ns", "wall_ns::FLOAT"),
    "a column less": "ALTER TABLE cells DROP COLUMN message",
    "a table less": "DROP TABLE outputs",
    "a measurement less": "ALTER TABLE cells DROP COLUMN bundle",
}
HARMLESS = {
    "long text": value("cells", "message", "repeat('x', 100000)"),
    "hostile text": value("cells", "method", "concat(chr(27), '[2J<script>|`', chr(8238))"),
    "nested facts": value("detections", "features", """'{"cores": {"a": [1, null]}, "x": null}'::JSON"""),
}
EXTREMES = {
    "DOUBLE": ("0", "1e12", "1e99"),
    "INTEGER": ("0", "2147483647"),
    "BIGINT": ("0", "9223372036854775807"),
    "DOUBLE[]": ("[0, 1e99]",),
}
"""Valid values of SQL types that a report might not be ready for."""


def content(path: Path, shard_ids: tuple[str, ...]) -> dict[str, list[Any]]:
    """All rows of these shards."""
    with duckdb.connect(str(path), read_only=True) as connection:
        found = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in COPIED}  # noqa: S608
    return {
        table: sorted(repr(row) for row in of_table if any(part in repr(row) for part in shard_ids)) for table, of_table in found.items()
    }


def test_a_changed_shard_is_rejected_or_harmless(template: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(template, tmp_path / template.name)
    clean = tmp_path / "clean.duckdb"
    merge([folder], clean)
    mutations = {**REJECTED, **HARMLESS}
    ids = {f"{number:012x}": name for number, name in enumerate(mutations)}
    for shard_id, name in ids.items():
        mutated(template, folder, shard_id, mutations[name])
    mutated(template, folder, GOOD)
    database = tmp_path / "matrix.duckdb"
    report = merge([folder], database)
    rejected = {ids[rejection.file.removeprefix("cpu-").removesuffix(".duckdb")]: rejection.reason for rejection in report.rejected}
    assert set(rejected) == set(REJECTED)
    assert all(rejected.values())
    assert {OWN, OTHER, GOOD} <= set(report.merged)
    assert content(database, (OWN, OTHER)) == content(clean, (OWN, OTHER))
    rows = read(database)
    assert {cell.target: cell.status for cell in rows.cells} == {"cpu": Status.PASS, "openvino": Status.PASS}
    assert "\x1b" not in matrix_md(rows)


@pytest.mark.parametrize("table", [pytest.param("cells", marks=pytest.mark.long), "outputs", "stages", "samples", "shards"])
def test_extreme_numbers_stop_no_report(table: str, template: Path, tmp_path: Path) -> None:
    with duckdb.connect(str(template / "shards" / f"cpu-{OWN}.duckdb"), read_only=True) as connection:
        columns = connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE {table})").fetchall()  # noqa: S608
    changes = [(at, value(table, name, f"{each}::{kind}")) for name, kind in columns for at, each in enumerate(EXTREMES.get(kind, ()))]
    folder = shutil.copytree(template, tmp_path / "each" / template.name)
    for number, (_, change) in enumerate(changes):
        mutated(template, folder, f"{number:012x}", change)
    rejected = {rejection.file for rejection in merge([folder], tmp_path / "each.duckdb").rejected}
    accepted = [each for number, each in enumerate(changes) if f"cpu-{number:012x}.duckdb" not in rejected]
    assert accepted
    for extreme in {at for at, _ in accepted}:
        folder = shutil.copytree(template, tmp_path / str(extreme) / template.name)
        mutated(template, folder, f"{0:012x}", *(change for at, change in accepted if at == extreme))
        database = tmp_path / f"{extreme}.duckdb"
        assert merge([folder], database).rejected == ()
        texts, _ = rendered(database, tmp_path / "reports", history=None, beside=False, cache=tmp_path / "cache")
        assert "Infinity" not in texts["matrix.json"]


@pytest.mark.parametrize("domain", [*INVALID, *(name for name, kind in vars(vocabulary).items() if isinstance(kind, enum.EnumMeta))])
def test_a_column_of_a_domain_takes_no_other_value(domain: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(with_types(f"CREATE TABLE alone (\n    x {domain}\n);", checked=True))
        connection.execute("INSERT INTO alone VALUES (NULL)")
        for expression in VALID.get(domain) or [f"'{word}'" for word in getattr(vocabulary, domain)]:
            connection.execute(f"INSERT INTO alone VALUES ({expression})")  # noqa: S608
        for expression in INVALID.get(domain, ("'banana'", "''", "'PASS'")):
            with pytest.raises(duckdb.ConstraintException):
                connection.execute(f"INSERT INTO alone VALUES ({expression})")  # noqa: S608
