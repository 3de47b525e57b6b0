"""The error reporter: collects the errors of all components, each once, with recommendations, as Markdown or JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from hwmatrix import __version__
from hwmatrix.basics.clock import now
from hwmatrix.basics.files import write_atomically
from hwmatrix.classifier.classifier import Sources
from hwmatrix.errors import ConfigError, Problem, StoreError
from hwmatrix.faults.error_records import ReportedError, from_dict, in_utc, merged, of_type, recognized
from hwmatrix.hardware.api import HardwareDetector
from hwmatrix.knowledge.compatibility_table import table_of
from hwmatrix.knowledge.on_record import LATEST, NOTHING, OnRecord, on_record
from hwmatrix.pool.pool import get_global_resource_pool
from hwmatrix.records import Status
from hwmatrix.reporter import collecting, components, stack
from hwmatrix.reporter.document import ErrorReport, report_of, to_json
from hwmatrix.reporter.text import matrix_markdown, report_markdown
from hwmatrix.store.reading import DATABASE

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hwmatrix.faults.error_records import ErrorDict
    from hwmatrix.knowledge.compatibility_table import TableRow
    from hwmatrix.pool.pool import ResourcePool
    from hwmatrix.reporter.components import Checked
    from hwmatrix.reporter.stack import StackResult

ReportFormat = Literal["markdown", "json"]
FORMATS: Final[tuple[str, ...]] = get_args(ReportFormat)
_DETECTION: Final = "hardware_detection"
_RECORDS: Final = "records"
"""The source of records that other components added."""


class HardwareCompatibilityReporter:
    """Collects errors, and reports them. Nothing is checked until a method is called; each method may be called again.

    Args:
        database: a merged database; None: ./reports/latest/matrix.duckdb if it exists, and for the matrix also the published results.
        sources: the classifier's sources, if not the default ones. Their database is used if ``database`` is None.
        pool: the resource pool to query; None: that of this process.
        clock: returns the time for timestamps; None: the system's clock.
    """

    def __init__(
        self,
        database: Path | str | None = None,
        *,
        sources: Sources | None = None,
        pool: ResourcePool | None = None,
        clock: Callable[[], dt.datetime] | None = None,
    ) -> None:
        self._sources = sources or Sources()
        self._database = Path(database) if database is not None else self._sources.database
        self._pool = pool
        self._clock = clock or now
        self._collected: dict[str, list[ReportedError]] = {}
        self._components: tuple[Checked, ...] | None = None
        self._stack: tuple[StackResult, ...] | None = None
        self._matrix: tuple[TableRow, ...] | None = None
        self._measured: OnRecord = NOTHING

    @property
    def errors(self) -> tuple[ReportedError, ...]:
        """The errors collected so far, each once, the most severe first."""
        return tuple(record for record, _ in merged(self._all_errors()))

    def add(self, record: ReportedError | Mapping[str, Any]) -> None:
        """Add a record that a component made: a :class:`ReportedError`, or a mapping with the same keys.

        Raises:
            ConfigError: a key is missing or unknown, or a value is invalid.
        """
        known = record if isinstance(record, ReportedError) else from_dict(record)
        self._store(_RECORDS, [*self._collected.get(_RECORDS, ()), known])

    def check_components(self) -> list[ErrorDict]:
        """Check which packages of the host and of the targets are installed.

        A missing package of the host is a ``warning``, a runtime that only its image has is ``info``.
        """
        self._components, found = components.check()
        return self._store("components", found)

    def collect_hardware_detection_errors(self) -> list[ErrorDict]:
        """Why each missing kind of hardware is missing; also errors of the detector itself."""
        detector = self._sources.detector or HardwareDetector()
        try:
            detections = detector.detect()
        except Exception as error:  # noqa: BLE001 - a caller's own detector may raise anything, which is then reported
            message = f"the detection of hardware failed: {type(error).__name__}: {error}"
            return self._store(_DETECTION, [of_type("component_broken", message, component=_DETECTION)])
        return self._store(
            _DETECTION,
            [
                recognized(
                    found.reason or "it is missing, for an unknown reason",
                    component=_DETECTION,
                    hardware=hardware,
                    status=Status.UNAVAILABLE,
                    timestamp=found.detected_at,
                )
                for hardware, found in detections.items()
                if not found.available
            ],
        )

    def collect_resource_pool_errors(self) -> list[ErrorDict]:
        """The models that the resource pool could not start, or started on other hardware than requested."""
        pool = self._pool or get_global_resource_pool()
        found = [from_dict(record) for record in pool.errors()]
        for report in pool.fallbacks:
            fallback = of_type("fallback", report.sentence(), component="resource_pool", hardware=report.expected, model_name=report.model)
            found.append(fallback)
        return self._store("resource_pool", found)

    def collect_model_integration_errors(self, model: str) -> list[ErrorDict]:
        """Why a model cannot run here: its family is not known, or it does not work or fit on some or all available hardware.

        Raises:
            ConfigError: the model's name is invalid.
            StoreError: the file is not a hwmatrix database.
        """
        sources = dataclasses.replace(self._sources, database=self._database)
        return self._store(f"model {model}", collecting.errors_of(model, sources))

    def collect_database_errors(self) -> list[ErrorDict]:
        """The errors of the cells on record here, and the shards that a merge refused. Empty if there is no database.

        Published results do not count: they are not errors of this machine.

        Raises:
            StoreError: the file is not a hwmatrix database, or the named one does not exist.
        """
        database = self._database_path()
        return self._store("database", collecting.errors_in(database), stamp=False) if database is not None else []

    def test_full_hardware_stack(self) -> list[dict[str, Any]]:
        """Test all available hardware: ``hwmatrix test`` runs a tiny model on every target that this interpreter has the packages of.

        Each target has its own process, so that a crash or a hang is a result. Takes a minute or two.

        Returns:
            The result of each kind of hardware: hardware, status, execution, dtype, wall_ms, message. Empty if the test could not start,
            which is an error of the report.
        """
        self._stack, errors = stack.run_test()
        self._store(stack.COMPONENT, errors)
        return [{name: getattr(value, "value", value) for name, value in vars(result).items()} for result in self._stack]

    def collect_all(self, models: Sequence[str] = ()) -> list[ErrorDict]:
        """All of the above except :meth:`test_full_hardware_stack`, which executes something; ``models`` are checked one by one."""
        found = self.check_components() + self.collect_hardware_detection_errors() + self.collect_resource_pool_errors()
        found += self.collect_database_errors()
        for model in models:
            found += self.collect_model_integration_errors(model)
        return found

    def generate_compatibility_matrix(self) -> str:
        """Families and architectures against hardware, as Markdown: what was measured, or, if nothing was, what is expected.

        Later reports contain it too.

        Raises:
            StoreError: the file is not a hwmatrix database.
        """
        self._measured = on_record(self._database, latest=self._sources.reports or LATEST)
        self._matrix = table_of(self._measured)
        self._collected["compatibility_matrix"] = []
        return matrix_markdown(self._document(), self._measured)

    def generate_report(self, format: str = "markdown") -> str:  # noqa: A002 - the documented name
        """Everything that was collected, each error once, the most severe first.

        Args:
            format: ``markdown`` or ``json`` (schema hwmatrix/error-report/1).

        Raises:
            ConfigError: there is no such format.
        """
        if format not in FORMATS:
            hint = f"{FORMATS[0]} or {FORMATS[1]}"
            raise ConfigError([Problem(where="format", what=f"a report cannot be written as {format!r}", hint=hint)])
        document = self._document()
        return to_json(document) if format == "json" else report_markdown(document, self._database_path(), self._measured)

    def save_to_file(self, report: str, path: Path | str) -> Path:
        """Write a report. An existing file is replaced atomically, or left unchanged if writing fails.

        Raises:
            StoreError: it cannot be written.
        """
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, report)
        except OSError as error:
            raise StoreError(f"{target}: the report cannot be written: {error}", advice="Free space, or name another file.") from error
        return target

    def _store(self, collection: str, found: Iterable[ReportedError], *, stamp: bool = True) -> list[ErrorDict]:
        """Replace the records of a collection. ``stamp``: give those without a timestamp the current time."""
        now = in_utc(self._clock()) if stamp else None
        kept = [record if record.timestamp else dataclasses.replace(record, timestamp=now) for record in found]
        self._collected[collection] = kept
        return [record.to_dict() for record in kept]

    def _all_errors(self) -> list[ReportedError]:
        return [record for kept in self._collected.values() for record in kept]

    def _document(self) -> ErrorReport:
        return report_of(
            merged(self._all_errors()),
            generated_at=str(in_utc(self._clock())),
            version=__version__,
            collected=self._collected,
            components=self._components,
            stack=self._stack,
            matrix=self._matrix,
            evidence=self._measured.answer(),
        )

    def _database_path(self) -> Path | None:
        own = (self._sources.reports or LATEST) / DATABASE
        return self._database or (own if own.is_file() else None)
