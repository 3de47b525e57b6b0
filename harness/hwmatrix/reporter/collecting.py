"""The errors that a report collects: those of a merged database, and the reasons why a model cannot run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwmatrix.classifier.classifier import HardwareAwareModelClassifier
from hwmatrix.faults.error_records import of_cell, of_type
from hwmatrix.records import Basis, Dtype, Severity, Stage, Status
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hwmatrix.classifier.answers import ModelAnswer
    from hwmatrix.classifier.classifier import Sources
    from hwmatrix.faults.error_records import ReportedError


_MERGE = "merge"


def errors_in(database: Path) -> tuple[ReportedError, ...]:
    """The error of every cell's newest execution, and every shard that the merge refused. The database is not changed.

    Raises:
        StoreError: it is missing, not a merged database, or of an unsupported version.
    """
    with reading(database) as connection:
        cells = records(connection, "error_records")
        rejected = records(connection, "rejected_shards")
    refused = (
        of_type("shard_rejected", f"{row['file']}: {row['reason']}", component=_MERGE, timestamp=_stamp(row["rejected_at"]))
        for row in rejected
    )
    return (*(_cell_error(row) for row in cells), *refused)


def _cell_error(row: Mapping[str, Any]) -> ReportedError:
    return of_cell(
        row["message"] or f"the cell ended as {row['status']} without a message",
        hardware=row["backend"],
        error_type=row["error_type"],
        severity=Severity(row["severity"]) if row["severity"] is not None else None,
        status=Status(row["status"]),
        stage=Stage(row["stage"]) if row["stage"] is not None else None,
        timestamp=_stamp(row["started_at"]),
        model_name=row["model"],
        traceback=row["traceback"],
        dtype=Dtype(row["dtype"]),
        batch=row["batch"],
    )


def _stamp(value: Any) -> str | None:
    return None if value is None else value.isoformat()


COMPONENT: Final = "model_integration"


def errors_of(model_name: str, sources: Sources) -> tuple[ReportedError, ...]:
    """Ask the classifier about a model, and return why it cannot run here.

    Raises:
        ConfigError: the model's name is invalid.
        StoreError: the file is not a hwmatrix database.
    """
    answer = HardwareAwareModelClassifier(sources=sources).classify_model(model_name)
    return (*_model_errors(answer), *_hardware_errors(answer))


def _model_errors(answer: ModelAnswer) -> Iterator[ReportedError]:
    name, profiles, needs = answer["model_name"], answer["hardware_profile"], answer["resource_requirements"]
    if answer["family"] is None:
        source = answer["classification"]["source"]
        yield of_type("family_unknown", f"the family of {name} is not known: {source}", component=COMPONENT, model_name=name)
    if needs["min_memory_mb"] is None:
        yield of_type("size_unknown", str(needs["note"]), component=COMPONENT, model_name=name)
    if not any(_usable(profile) for profile in profiles.values()):
        here = [hardware for hardware, profile in profiles.items() if profile["installed"]]
        reasons = "; ".join(f"{hardware}: {_short_reason(profiles[hardware])}" for hardware in here) or "there is no hardware here"
        message = f"no hardware here is known to run {name}: {reasons}"
        yield of_type("no_compatible_hardware", message, component=COMPONENT, model_name=name)


def _hardware_errors(answer: ModelAnswer) -> Iterator[ReportedError]:
    """Available hardware that cannot run the model. The detection reports missing hardware."""
    name = answer["model_name"]
    for hardware, profile in answer["hardware_profile"].items():
        if not profile["installed"]:
            continue
        if profile["compatible"] is False:
            verdict = "is not expected to work" if profile["basis"] == Basis.PRIOR else "does not work"
            message = f"{name} {verdict} on {hardware}: {profile['reason']}"
            yield of_type("hardware_incompatible", message, component=COMPONENT, hardware=hardware, model_name=name)
        elif profile["fits"] is False:
            message = f"{name} does not fit on {hardware}: {_memory(profile)}"
            yield of_type("memory_insufficient", message, component=COMPONENT, hardware=hardware, model_name=name)


def _usable(profile: Mapping[str, Any]) -> bool:
    return profile["installed"] is True and profile["compatible"] is True and profile["fits"] is not False


def _short_reason(profile: Mapping[str, Any]) -> str:
    """The reason in a few words. If a model does not work or fit, a separate error has the details."""
    if profile["compatible"] is None:
        return "not known to work"
    if profile["compatible"] is False:
        return "not expected to work" if profile["basis"] == Basis.PRIOR else "does not work"
    return _memory(profile)


def _memory(profile: Mapping[str, Any]) -> str:
    """The needed memory with its basis, and the free memory, in MiB."""
    usage = profile["memory_usage"]
    return f"it needs {usage['peak']:,} MiB ({usage['basis']}), and {profile['available_memory_mb']:,} MiB are left"
