"""Downloads checkpoints from the hub: only safetensors and configuration, with a quick, clear error if the hub is unreachable."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import FactoryError
from hwmatrix.models.build import HUB
from hwmatrix.models.checkpoint import inspect, inspect_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwmatrix.records import ModelPlan

TIMEOUT_S: Final = 4.0  # how long the hub may take to say which commit a name means; huggingface_hub asks twice
_CONFIG: Final = ["*.json", "*.txt", "*.model"]
_WEIGHTS: Final = [*_CONFIG, "*.safetensors"]
_ELSEWHERE: Final = ["*/*"]  # other formats and other precisions lie in folders of a repository


def fetch(hub_id: str, revision: str | None, cache: Path) -> Path:
    """Download a checkpoint, or find it in ``cache``: the folder of its snapshot, whose name is the commit.

    The configuration comes first, so that a repository that needs code of its own is refused before its weights are downloaded.
    Without an answer from the hub, what an earlier call left in the cache is used.

    Raises:
        FactoryError: no answer within about 10 s and nothing cached (``hub_unreachable``), no such repository or revision
            (``hub_not_found``), one that asks for an account (``hub_gated``), or no safetensors in it (``no_weights``).
        RefusedError: it needs code of its own.
    """
    try:
        commit = _commit(hub_id, revision)
    except FactoryError as error:
        folder = cached(hub_id, cache, revision=revision) if error.error_type == "hub_unreachable" else None
        if folder is None:
            raise
    else:
        inspect_config(_download(hub_id, commit, cache, _CONFIG))
        folder = _download(hub_id, commit, cache, _WEIGHTS)
    inspect(folder)
    return folder


def fetch_config(hub_id: str, revision: str | None, cache: Path) -> Path:
    """Download a checkpoint's configuration alone, or find it in ``cache`` or in the cache of the hub's own client: its folder.

    Raises:
        FactoryError: as :func:`fetch`, but for its weights, which are not asked for.
        RefusedError: it needs code of its own.
    """
    folder = cached(hub_id, cache, revision=revision) or cached(hub_id, revision=revision)
    if folder is None:
        folder = _download(hub_id, _commit(hub_id, revision), cache, _CONFIG)
    inspect_config(folder)
    return folder


def resolve(plan: ModelPlan, cache: Path) -> ModelPlan:
    """The plan with its weights in a folder: unchanged unless they are on the hub, and then pinned to the commit that was fetched.

    Raises:
        FactoryError: as :func:`fetch`.
        RefusedError: as :func:`fetch`.
    """
    if plan.weights != HUB or plan.hub_id is None:
        return plan
    folder = fetch(plan.hub_id, plan.revision, cache)
    return dataclasses.replace(plan, weights=str(folder), revision=folder.name)


def _commit(hub_id: str, revision: str | None) -> str:
    """Which commit a revision means, asked with a timeout: ``snapshot_download`` would ask the same without one."""
    import huggingface_hub

    with _typed(hub_id, revision):
        return str(huggingface_hub.HfApi().model_info(hub_id, revision=revision, timeout=TIMEOUT_S).sha)


def _download(hub_id: str, commit: str, cache: Path, patterns: list[str]) -> Path:
    import huggingface_hub

    with _typed(hub_id, commit):
        folder = huggingface_hub.snapshot_download(
            hub_id,
            revision=commit,
            cache_dir=cache,
            allow_patterns=patterns,
            ignore_patterns=_ELSEWHERE,
            etag_timeout=TIMEOUT_S,
        )
    return Path(folder)


def cached(hub_id: str, cache: Path | None = None, *, revision: str | None = None) -> Path | None:
    """The folder of a snapshot that an earlier download left, or None. Nobody is asked.

    ``cache`` None means the cache of the hub's own client. Without that client nothing is found.
    """
    try:
        import huggingface_hub
    except ImportError:
        return None
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, revision=revision, cache_dir=cache, local_files_only=True))
    except (huggingface_hub.errors.LocalEntryNotFoundError, huggingface_hub.errors.HFValidationError):
        return None


@contextlib.contextmanager
def _typed(hub_id: str, revision: str | None) -> Iterator[None]:
    """Turn what the hub's client raises into what to do about it."""
    from huggingface_hub import errors

    at = f"{hub_id}@{revision}" if revision else hub_id
    try:
        yield
    except errors.GatedRepoError as error:
        message = f"the hub gives {at} only to accounts that accepted its terms: accept them, download it, and name the folder"
        raise FactoryError(message, error_type="hub_gated") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        message = f"the hub has no {at}, or does not show it without an account: check the name, or name a local checkpoint folder"
        raise FactoryError(message, error_type="hub_not_found") from error
    except Exception as error:  # files, sockets, proxies, TLS and servers: each library below has errors of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]  # what follows is advice that does not fit here
        message = f"{at} cannot be fetched ({reason}): connect to the hub, name a local checkpoint folder, or use weights: recipe"
        raise FactoryError(message, error_type="hub_unreachable") from error
