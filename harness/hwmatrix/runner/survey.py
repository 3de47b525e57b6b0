"""A survey of one target's image: the hardware that it sees, and how its packages classify the plan's models. Runs no model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from hwmatrix.errors import ConfigError
from hwmatrix.models.classify import classify
from hwmatrix.records import Classification, Plan, TargetPlan
from hwmatrix.records.backends import descriptor_of
from hwmatrix.runner.detecting import detections
from hwmatrix.runner.events import emit
from hwmatrix.runner.identity import shard_identity
from hwmatrix.store.shard import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.records import ModelPlan


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurveyOrder:
    """What one survey must do, and what the host knows about where it runs."""

    plan: Plan
    target: TargetPlan
    out: Path
    host: str
    image: str | None
    image_digest: str | None


def survey(order: SurveyOrder) -> Path:
    """Detect and classify; return the sealed shard. It has no cells, so canaries are not needed and do not run.

    Raises:
        StoreError: the shard cannot be written.
    """
    identity = shard_identity(order, descriptor_of(order.target.backend).packages, warm_up_ms=None)
    with ShardWriter(order.out, order.plan, identity) as shard:
        found = detections()
        shard.add_detections(found)
        known = classifications(order.plan.models)
        shard.add_classifications(known)
        path = shard.seal()
    emit(
        "survey",
        here=[detection.hardware_type for detection in found if detection.available],
        classified=sum(each.family is not None for each in known),
        models=len(known),
    )
    emit("sealed", shard=path.name)
    return path


def classifications(models: Iterable[ModelPlan]) -> list[Classification]:
    """The classification of each model, once per name: all sizes of a model share it.

    A checkpoint's name is that of its folder, which is arbitrary: its architecture and class decide.
    """
    found = []
    for model in {model.name: model for model in models}.values():
        try:
            known = classify(model.architecture, model_class=model.model_class, architecture=model.architecture, config=model.config)
        except ConfigError as refused:
            known = Classification(
                model_name=model.name,
                architecture=model.architecture,
                model_class=model.model_class,
                family=None,
                subfamily=None,
                structure=None,
                confidence=0.0,
                evidence="none",
                source=str(refused),
            )
        found.append(dataclasses.replace(known, model_name=model.name))
    return found
