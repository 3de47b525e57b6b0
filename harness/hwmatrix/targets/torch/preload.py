"""The warm parent's imports for targets that load models with torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def preload_torch(model_classes: Iterable[str]) -> None:
    """Import torch, transformers and the modules of these classes. Torch stays at one thread here and computes nothing.

    transformers imports a model's module when its class is first asked for (a second or so); in the parent that is paid once.
    """
    import torch
    import transformers

    from hwmatrix.models import bundle, inputs  # noqa: F401

    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    for name in sorted(set(model_classes)):
        try:
            getattr(transformers, name)
        except (AttributeError, ImportError, RuntimeError):
            continue  # the cell itself meets the same error, and there it is data
