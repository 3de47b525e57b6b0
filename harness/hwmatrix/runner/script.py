"""The runtime of generated tests: resolves a test's model, devices and batch size; also runs a test as a script."""

from __future__ import annotations

import argparse
import contextvars
import dataclasses
import importlib.metadata
import json
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.clock import stamp
from hwmatrix.basics.files import write_atomically
from hwmatrix.errors import ConfigError, NoTargetAvailableError
from hwmatrix.generate.test_plan import Wish, classification_of, places_of, plan_of
from hwmatrix.hardware.detector import detect, machine_identity
from hwmatrix.knowledge.names import DEFAULT_MATRIX
from hwmatrix.knowledge.priorities import backend_of
from hwmatrix.matrix.load import load
from hwmatrix.matrix.shipped import MATRIX_FILE, shipped_root
from hwmatrix.records import Backend
from hwmatrix.runner.place import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from hwmatrix.matrix.spec import MatrixSpec
    from hwmatrix.records import ModelPlan

SCHEMA: Final = "hwmatrix/generated-test/1"
_PACKAGES: Final = ("hwmatrix", "torch", "transformers", "pytest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The command-line options of a test that runs as a script. None: the test's own value."""

    device: Backend | None = None
    all_hardware: bool = False
    batch: int | None = None


_ASKED: Final[contextvars.ContextVar[Asked | None]] = contextvars.ContextVar("asked", default=None)


def described(model_name: str, hardware: str | None = None) -> tuple[ModelPlan, list[Place]]:
    """The plan of a model by its name, in tiny size, and where to test it: on ``hardware`` (if given) and on the CPU.

    Raises:
        ConfigError: the name cannot be resolved to a model, or the model cannot be built; there is no such hardware.
    """
    plan = plan_of(model_name, _spec(), Wish())
    wanted = [] if hardware is None else [backend_of(hardware)]
    return plan, [_place(plan, backend) for backend in dict.fromkeys([*wanted, Backend.CPU])]


def places(model: ModelPlan, listed: Sequence[Place]) -> list[Place]:
    """Where to test a model: the places that its test lists, or those of the command line."""
    asked = _ASKED.get() or Asked()
    if asked.device is None and not asked.all_hardware:
        return list(listed)
    backends = tuple(Backend) if asked.all_hardware else (asked.device,)
    known = {place.backend: place for place in listed}
    return [known.get(backend) or _place(model, backend) for backend in backends if backend is not None]


def batch_size(usual: int) -> int:
    """The number of samples in a batch: the test's own, or that of the command line."""
    return (_ASKED.get() or Asked()).batch or usual


def main(file: str, arguments: Sequence[str] | None = None) -> int:
    """Run a generated test with pytest, as in ``python test_hf_bert.py --device cpu --batch-size 4 --save``.

    All other arguments are passed to pytest.

    Returns:
        The exit code: pytest's, but 6 if every test was skipped because none of the hardware is available.
    """
    import pytest

    parser = _parser(file)
    given, others = parser.parse_known_args(arguments)
    try:
        device = None if given.device is None else backend_of(given.device)
    except ConfigError as error:
        parser.error(str(error))
    asked = Asked(device=device, all_hardware=given.all_hardware, batch=given.batch_size)
    results = Results(file)
    token = _ASKED.set(asked)
    try:
        code = int(pytest.main([file, "-rs", *others], plugins=[results]))
    finally:
        _ASKED.reset(token)
    if given.save:
        path = Path(file).with_suffix(".results.json")
        write_atomically(path, json.dumps(results.document(), indent=2) + "\n")
        sys.stdout.write(f"wrote {path}\n")
    return NoTargetAvailableError.exit_code if code == 0 and results.nothing_ran else code


class Results:
    """A pytest plugin that records each test's outcome and place."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._places: dict[str, Place] = {}
        self._facts: dict[str, Any] = {}
        self._tests: dict[str, dict[str, Any]] = {}

    @property
    def nothing_ran(self) -> bool:
        """Whether there were tests, and every one was skipped."""
        return bool(self._tests) and {test["outcome"] for test in self._tests.values()} == {"skipped"}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the places of the tests that will run."""
        for item in session.items:
            module: Any = getattr(item, "module", None)
            parameters = getattr(getattr(item, "callspec", None), "params", {})
            self._facts = {"model": module.MODEL.name, "batch_size": module.BATCH_SIZE}
            place = parameters.get("model")
            if place is not None:
                self._places[str(place)] = place

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test's outcome: that of its call, or of its setup or teardown if that did not pass."""
        test = self._tests.setdefault(report.nodeid.partition("::")[2], {"outcome": "passed", "seconds": 0.0, "reason": None})
        test["seconds"] += report.duration
        if report.outcome != "passed":
            test["outcome"] = report.outcome if report.when == "call" or report.skipped else "error"
            test["reason"] = _reason(report)
        test |= dict(report.user_properties)

    def document(self) -> dict[str, Any]:
        """All outcomes, with hardware and versions, for JSON. ``seconds`` are wall-clock time including setup and teardown."""
        return {
            "schema": SCHEMA,
            "file": Path(self._file).name,
            **self._facts,
            "at": stamp(),
            "machine": machine_identity(),
            "versions": {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in _PACKAGES}},
            "places": [_row(name, place) for name, place in self._places.items()],
            "counts": dict(Counter(test["outcome"] for test in self._tests.values())),
            "tests": [{"test": name, **test} for name, test in self._tests.items()],
        }


def _parser(file: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=Path(file).name, description="Test one model on the hardware of this machine.")
    parser.epilog = "All other arguments are passed to pytest."
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--device", metavar="D", help=f"on this hardware only: {', '.join(Backend)}")
    where.add_argument("--all-hardware", action="store_true", help="on every kind of hardware; unavailable ones are skipped")
    parser.add_argument("--batch-size", type=_positive, metavar="N", help="number of samples in the batch of the batching test")
    parser.add_argument("--save", action="store_true", help="keep the results as JSON beside the test")
    return parser


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"a batch has at least one sample, not {word}")
    return number


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.longreprtext if crash is None else str(crash.message)


def _row(name: str, place: Place) -> dict[str, Any]:
    found = detect(place.backend)
    hardware = {"available": found.available, "name": found.name, "reason": found.reason}
    return {"place": name, "device": place.device, "dtype": place.dtype.value, "tolerance": place.tolerance, "hardware": hardware}


def _place(plan: ModelPlan, backend: Backend) -> Place:
    spec = _spec()
    (planned,) = places_of(plan, classification_of(plan, spec), spec, Wish(device=backend.value))
    return Place(
        device=planned.device,
        dtype=planned.dtype,
        tolerance=planned.tolerance,
        memory_mb=planned.memory_mb,
        threads=planned.threads,
        options=planned.options,
    )


def _spec() -> MatrixSpec:
    """The spec of matrix.yaml in the working directory, or else of the one that ships with hwmatrix."""
    return load(DEFAULT_MATRIX if DEFAULT_MATRIX.is_file() else shipped_root() / MATRIX_FILE).spec
