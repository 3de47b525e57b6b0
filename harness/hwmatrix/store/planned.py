"""The plan of a run: the union of the plans of its machines, because each machine stores only its own part."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from hwmatrix.errors import StoreError
from hwmatrix.records import CellPlan, Dtype, ModelPlan, Plan, Size, TargetPlan, plan_from_json, to_json
from hwmatrix.store.cell_columns import sql
from hwmatrix.store.shard import insert_run

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    import duckdb

_SAME_EVERYWHERE: Final = frozenset({"recipe", "factory"})
"""Weights that are the same on every machine. Other weights are in a folder, whose path may differ between machines."""
_ADVICE: Final = "Merge only parts of the same run. A new plan is another run: give it a database of its own."
_HIDDEN_ADVICE: Final = (
    "Merge all folders of the run, also those of other machines, into a new database: each has the plan of its own cells."
)
_DAMAGED: Final = "The plan was changed by hand, or damaged: run it again."
_SHOWN: Final = 3
Part = TypeVar("Part", Plan, ModelPlan, TargetPlan, CellPlan)


def united(plans: Sequence[tuple[str, Plan]]) -> Plan:
    """One plan with the cells of all these plans, which are of one run. Each comes with its file name, for error messages.

    Order and repetition do not matter. A target or a model that one machine had does not become unavailable because another machine
    lacked it.

    Raises:
        StoreError: two plans contradict each other: they describe a cell, model or target differently, or have different rules for the run.
    """
    (_, first), *others = plans
    if all(plan == first for _, plan in others):
        return first
    _join("the run", [(place, first.run_id, _rules(plan)) for place, plan in plans], lambda rules: rules[0])
    models = _join("model", [(place, each.key, each) for place, plan in plans for each in plan.models], _best_model)
    targets = _join("target", [(place, each.name, each) for place, plan in plans for each in plan.targets], _best_target)
    cells = _join("cell", [(place, each.key, each) for place, plan in plans for each in plan.cells], lambda found: found[0])
    withdrawn = {key for _, plan in plans for key in plan.withdrawn} - {cell.key for cell in cells}
    joined = dataclasses.replace(
        first, models=tuple(models), targets=tuple(targets), cells=tuple(cells), withdrawn=tuple(sorted(withdrawn))
    )
    return in_order(joined)


def in_order(plan: Plan) -> Plan:
    """A plan with its models and targets in the order of matrix.yaml, and its cells ordered by these."""

    def line_of(model: ModelPlan) -> tuple[bool, int, str, int, int, int]:
        name, size, batch, length = model.key
        return model.matrix_line is None, model.matrix_line or 0, name, list(Size).index(size), batch, length

    models = sorted(plan.models, key=line_of)
    targets = sorted(plan.targets, key=lambda target: (target.matrix_line is None, target.matrix_line, target.name))
    of_model = {model.key: number for number, model in enumerate(models)}
    of_target = {target.name: number for number, target in enumerate(targets)}

    def place_of(cell: CellPlan) -> tuple[int, int, int, str]:
        precision = list(Dtype).index(cell.settings.dtype)
        return of_model.get(cell.model_key, -1), of_target.get(cell.target, -1), precision, cell.key

    return dataclasses.replace(plan, models=tuple(models), targets=tuple(targets), cells=tuple(sorted(plan.cells, key=place_of)))


def plan_in(connection: duckdb.DuckDBPyConnection, run_id: str, *, where: str, schema: str = "main") -> Plan | None:
    """The plan of a run in a database (``schema``: the name under which it is attached), or None if the run is not in it.

    Raises:
        StoreError: the stored plan cannot be read.
    """
    row = connection.execute(f"SELECT CAST(plan AS VARCHAR) FROM {schema}.runs WHERE run_id = ?", [run_id]).fetchone()  # noqa: S608
    return plan_from_json(row[0], where=f"{where}, run {run_id}") if row is not None else None


def put(connection: duckdb.DuckDBPyConnection, plan: Plan, text: str | None = None) -> None:
    """Write a run's plan and its cells, in place of its earlier plan. ``text`` is the plan as JSON, if it is there already.

    Raises:
        StoreError: the plan has a cell of a model or target that it does not describe.
    """
    there = connection.execute("SELECT CAST(plan AS VARCHAR) FROM runs WHERE run_id = ?", [plan.run_id]).fetchone()
    if text is None:
        text = to_json(plan)
    if there == (text,):
        return
    if there is None:
        insert_run(connection, plan, text)
    else:
        connection.execute("UPDATE runs SET plan = ? WHERE run_id = ?", [text, plan.run_id])
        connection.execute("DELETE FROM planned WHERE run_id = ?", [plan.run_id])
    if plan.cells:
        connection.register("new_planned", _columns(plan))
        connection.execute(sql("planned.sql"), {"run_id": plan.run_id})
        connection.unregister("new_planned")


def hidden(connection: duckdb.DuckDBPyConnection, run_ids: Iterable[str]) -> list[tuple[str, str]]:
    """Cells of these runs (shard id and key) that no view shows: neither this execution nor a later one of the same cell."""
    return connection.execute(sql("hidden.sql"), {"run_ids": list(run_ids)}).fetchall()


def check_visible(
    connection: duckdb.DuckDBPyConnection, run_ids: Iterable[str], *, where: str, before: frozenset[tuple[str, str]] = frozenset()
) -> None:
    """Check that no cell of these runs is :func:`hidden`, except those that were already hidden ``before``.

    Raises:
        StoreError: some are; the message names them and their shards.
    """
    lost = [each for each in hidden(connection, run_ids) if each not in before]
    if lost:
        named = ", ".join(f"{key} of shard {shard_id}" for shard_id, key in lost[:_SHOWN])
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise StoreError(f"{where}: no report would show these cells: {named}{more}", advice=_HIDDEN_ADVICE)


def _rules(plan: Plan) -> Plan:
    """The part of a plan that concerns the run as a whole."""
    return dataclasses.replace(plan, models=(), targets=(), cells=(), withdrawn=())


def _join(kind: str, found: Sequence[tuple[str, Hashable, Part]], join: Callable[[list[Part]], Part]) -> list[Part]:
    """One part for each name, joined from all parts with that name."""
    by_name: dict[Hashable, list[tuple[str, Part]]] = {}
    for place, name, part in found:
        by_name.setdefault(name, []).append((place, part))
    for name, parts in by_name.items():
        seen: dict[str, tuple[str, Any]] = {}
        for place, part in sorted(parts, key=lambda each: each[0]):
            for field, value in _facts(part):
                other, before = seen.setdefault(field, (place, value))
                if before != value:
                    what = f"{kind} {_title(name)}: {field} is {before!r} in the one and {value!r} in the other"
                    raise StoreError(f"{other} and {place} contradict each other: {what}", advice=_ADVICE)
    return [join([part for _, part in parts]) for parts in by_name.values()]


def _title(name: Hashable) -> str:
    """The name of a part; of a model, its key in words."""
    if not isinstance(name, tuple):
        return str(name)
    model, size, batch, length = name
    return f"{model} ({size}, batch {batch}, length {length})"


def _facts(part: Any) -> list[tuple[str, Any]]:
    """The fields that must be the same on all machines, with their values."""
    facts: list[tuple[str, Any]] = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.name in {"unavailable", "unbuildable", "onnx"}:  # onnx follows from the backend, and earlier versions did not record it
            continue
        if isinstance(part, ModelPlan) and part.weights not in _SAME_EVERYWHERE:
            if field.name == "weights":
                value = "those of a checkpoint"
            elif field.name == "revision" and part.unbuildable is not None:
                continue
        inner = _facts(value) if dataclasses.is_dataclass(value) else None
        facts += [(field.name, value)] if inner is None else [(f"{field.name}.{name}", fact) for name, fact in inner]
    return facts


def _best_model(found: list[ModelPlan]) -> ModelPlan:
    """The model's description, preferably from a machine that can build it."""
    return min(found, key=lambda model: (model.unbuildable is not None, model.unbuildable or "", model.weights, model.revision or ""))


def _best_target(found: list[TargetPlan]) -> TargetPlan:
    """The target's description, preferably from a machine that has it."""
    return min(found, key=lambda target: (target.unavailable is not None, target.unavailable or ""))


def _columns(plan: Plan) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of the table ``planned``, as ``planned.sql`` reads them: a hundred times faster than row by row."""
    models = {model.key: number for number, model in enumerate(plan.models)}
    targets = {target.name: number for number, target in enumerate(plan.targets)}
    cells = plan.cells
    of_model, of_target = [models.get(cell.model_key, -1) for cell in cells], [targets.get(cell.target, -1) for cell in cells]
    for of, what in ((of_model, "model"), (of_target, "target")):
        if -1 in of:
            cell = cells[of.index(-1)]
            message = f"the plan of run {plan.run_id} has the cell {cell.key}, but no {what} {getattr(cell, what)}"
            raise StoreError(message, advice=_DAMAGED)

    def texts(values: Iterable[object], at: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        column = np.array([str(value) for value in values], dtype=object)
        return column if at is None else column[at]

    def numbers(name: str, values: Iterable[int | None]) -> np.ndarray[Any, Any]:
        try:
            return np.array([-1 if value is None else value for value in values], dtype=np.int64)
        except OverflowError as error:
            raise StoreError(f"the plan of run {plan.run_id} has a cell whose {name} is no number: {error}", advice=_DAMAGED) from error

    return {
        "cell_key": texts(cell.key for cell in cells),
        "model": texts((model.name for model in plan.models), of_model),
        "size": texts(cell.size for cell in cells),
        "target": texts(cell.target for cell in cells),
        "family": texts((model.family for model in plan.models), of_model),
        "architecture": texts((model.architecture for model in plan.models), of_model),
        "hub_id": texts((model.hub_id or "" for model in plan.models), of_model),
        "dtype": texts(cell.settings.dtype for cell in cells),
        "batch": numbers("batch", (cell.settings.batch for cell in cells)),
        "sequence_length": numbers("sequence_length", (cell.settings.sequence_length for cell in cells)),
        "threads": numbers("threads", (cell.settings.threads for cell in cells)),
        "new_tokens": numbers("new_tokens", (cell.settings.new_tokens for cell in cells)),
        "execution": texts((target.execution for target in plan.targets), of_target),
        "backend": texts((target.backend for target in plan.targets), of_target),
        "isolation": texts((plan.isolation_of(target.name) for target in plan.targets), of_target),
        "position": np.arange(len(cells)),
        "unavailable": texts((target.unavailable or "" for target in plan.targets), of_target),
        "unbuildable": texts((model.unbuildable or "" for model in plan.models), of_model),
        "matrix_line": numbers("line", (model.matrix_line for model in plan.models))[of_model],
    }
