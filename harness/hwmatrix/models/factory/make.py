"""A tiny model of a type, with its inputs: built by the rules, by gentler ones where those break it, within a cap of parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import FactoryError
from hwmatrix.models.factory.modalities import COUNTERS, given
from hwmatrix.models.factory.rules import override
from hwmatrix.models.factory.shrink import GENTLE, SMALL, tiny_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from hwmatrix.records import ModelPlan

FACTORY: Final = "factory"
"""The weights of a plan whose model is made from its type alone."""
MOST_PARAMETERS: Final = 20_000_000
"""A cap, in parameters: a tiny model of more is none, and all bundles of a sweep must fit on a disk."""
_PACKAGE: Final = re.compile(r"requires? the (?:`|')?([\w.-]+)(?:`|')? (?:library|package)|No module named '([\w.]+)'")


def attempts(plan: ModelPlan) -> Iterator[tuple[str, Any]]:
    """The configurations to try, smallest first: the level of the rules, and an instance of the type's configuration class.

    Raises:
        FactoryError: the type is unknown, cannot be built here at all, or its class refuses its configuration on every level.
    """
    import transformers  # noqa: PLC0415

    known = override(plan.architecture)
    if known.impossible is not None:
        raise FactoryError(known.impossible, error_type="unbuildable")
    if plan.architecture not in transformers.CONFIG_MAPPING:
        message = f"transformers {transformers.__version__} has no architecture {plan.architecture!r}"
        raise FactoryError(message, error_type="unknown_architecture")
    config_class = transformers.CONFIG_MAPPING[plan.architecture]
    failure: FactoryError | None = None
    for level in (known.level,) if known.level else (SMALL, GENTLE):
        try:
            config = tiny_config(config_class, known, level)
        except Exception as error:  # noqa: BLE001 - configurations validate themselves, each with errors of its own
            text = f"{config_class.__name__} refuses the config: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
            failure = failure or FactoryError(text, error_type="bad_config")
            failure.__cause__ = failure.__cause__ or error
            continue
        failure = None
        yield level, config
    if failure is not None:
        raise failure


def modalities(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What a bundle's manifest says of its inputs: the kinds that the model can take, and those that it was given."""
    import inspect  # noqa: PLC0415

    got = given(inputs)
    taken = got | given(inspect.signature(model.forward).parameters)
    media = {counter.kind for counter in COUNTERS}
    return {"takes": sorted(taken), "given": sorted(got), "text_path_only": bool(taken & media) and not got & media}
