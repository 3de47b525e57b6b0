"""Evidence, detections and requirements for tests of advice: real record types with invented values."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hwmatrix.knowledge.compatibility import Subject, compatibility_of
from hwmatrix.knowledge.evidence import Evidence
from hwmatrix.knowledge.profiles import HardwareProfile, availability_of
from hwmatrix.knowledge.requirements import RequirementsError
from hwmatrix.records import (
    Backend,
    Basis,
    Classification,
    Detection,
    Dtype,
    Execution,
    Family,
    Isolation,
    Level,
    ModelPlan,
    Requirements,
    Size,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hwmatrix.knowledge.profiles import Override


def evidence(model: str = "bert", hardware: str = "cpu", **changes: Any) -> Evidence:
    """A full-size model that passed at level High."""
    made = Evidence(
        model=model,
        hub_id=None,
        architecture=model,
        family=Family.EMBEDDING,
        size=Size.FULL,
        target=hardware,
        backend=Backend(hardware),
        dtype=Dtype.FLOAT32,
        batch=1,
        sequence_length=128,
        threads=1,
        execution=Execution.HARDWARE,
        status=Status.PASS,
        level=Level.HIGH,
        p50_ms=10.0,
        speed_up=None,
        speed_differs=False,
        peak_mb=900.0,
        device_peak_mb=None,
        parameters=110_000_000,
        error_type=None,
        message=None,
        isolation=Isolation.CONTAINER,
        host="f00d",
        run_id="run-1",
        started_at="2026-01-02T03:04:05",
    )
    return dataclasses.replace(made, **changes)


def failed(model: str = "bert", hardware: str = "cpu", status: Status = Status.ERROR, **changes: Any) -> Evidence:
    """A model that was executed and failed."""
    unmeasured = {"level": Level.NONE, "p50_ms": None, "peak_mb": None, "message": "it broke\nin two lines"}
    return evidence(model, hardware, status=status, **(unmeasured | changes))


def fast(model: str, hardware: str, speed_up: float, **changes: Any) -> Evidence:
    """A model whose speed differs measurably from that of the cpu."""
    level = Level.HIGH if speed_up > 1 else Level.MEDIUM
    return evidence(model, hardware, speed_up=speed_up, speed_differs=True, level=level, **{"p50_ms": 10.0 / speed_up} | changes)


def classification(model_name: str = "bert", family: Family | None = Family.EMBEDDING, **changes: Any) -> Classification:
    """A model's classification."""
    made = Classification(
        model_name=model_name,
        architecture=model_name if family else None,
        model_class=None,
        family=family,
        subfamily=None,
        structure=None,
        confidence=0.9 if family else 0.0,
        evidence="architecture" if family else "none",
        source="a test",
    )
    return dataclasses.replace(made, **changes)


def subject(
    model_name: str = "bert",
    family: Family | None = Family.EMBEDDING,
    plan: ModelPlan | None = None,
    *,
    generates: bool = False,
    **changes: Any,
) -> Subject:
    """The model of a question."""
    found = classification(model_name, family, **changes)
    return Subject(model_name=model_name, plan=plan, classification=found, generates=generates)


def detections(*here: str, memory_mb: int | None = 16_000, gpu_mb: int | None = 24_000) -> dict[str, Detection]:
    """A machine with a cpu and this hardware; GPUs have their own memory."""

    def one(backend: Backend) -> Detection:
        available = backend.value in {"cpu", *here}
        features: dict[str, Any] = {"memory_left_mb": memory_mb} if backend is Backend.CPU else {}
        if available and backend in {Backend.CUDA, Backend.ROCM}:
            features = {"gpus": [{"memory_mb": 4_000, "free_mb": 100}, {"memory_mb": gpu_mb, "free_mb": gpu_mb}]}
        return Detection(
            hardware_type=backend.value,
            available=available,
            name=backend.value if available else None,
            features=features,
            reason=None if available else f"no {backend.value} in this test",
            detected_at="2026-01-02T03:04:05",
        )

    return {backend.value: one(backend) for backend in Backend}


def requirements(min_memory_mb: int = 1_000, hardware: str = "cpu", **changes: Any) -> Requirements:
    """A model's requirements."""
    made = Requirements(
        model_name="bert",
        hardware=hardware,
        dtype=Dtype.FLOAT32,
        batch=1,
        sequence_length=128,
        memory_kind="device" if hardware in {"cuda", "rocm", "mps"} else "host",
        min_memory_mb=min_memory_mb,
        recommended_memory_mb=min_memory_mb * 5 // 4,
        cpu_cores=1,
        disk_space_mb=450,
        batch_size=8,
        parameters=110_000_000,
        basis=Basis.ESTIMATED,
        note="a test",
    )
    return dataclasses.replace(made, **changes)


def needs(memory_mb: int | None, hardware: str = "cpu") -> Callable[[], Requirements]:
    """A model's requirements; ``memory_mb`` None: unknown."""

    def ask() -> Requirements:
        if memory_mb is None:
            raise RequirementsError("its size is not known", advice="Run it once.")
        return requirements(memory_mb, hardware)

    return ask


def profiles(
    asked: Subject,
    records: Iterable[Evidence] = (),
    machine: Mapping[str, Detection] | None = None,
    *,
    memory_mb: int | None = 1_000,
    overrides: Mapping[Backend, Override] | None = None,
) -> dict[Backend, HardwareProfile]:
    """A model's profile on all hardware; ``memory_mb`` is the memory that it needs, None: unknown."""
    known = list(records)
    return {
        hardware: HardwareProfile(
            compatibility=compatibility_of(asked, hardware, known),
            availability=availability_of(hardware, detections() if machine is None else machine),
            ask=needs(memory_mb, hardware.value),
            override=(overrides or {}).get(hardware),
        )
        for hardware in Backend
    }
