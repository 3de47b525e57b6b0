"""Downloads checkpoints from the hub: only safetensors and configuration. Fails quickly and clearly if the hub is unreachable."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import FactoryError
from hwmatrix.models.build import HUB
from hwmatrix.models.checkpoint import POOLING, inspect, inspect_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hwmatrix.records import ModelPlan

TIMEOUT_S: Final = 4.0  # for resolving a revision to a commit; huggingface_hub asks twice
_CONFIG: Final = ["*.json", "*.txt", "*.model"]
_WEIGHTS: Final = [*_CONFIG, "*.safetensors"]
_SUBFOLDERS: Final = ("*/*",)  # repositories keep other formats and precisions there


def fetch(hub_id: str, revision: str | None, cache: Path) -> Path:
    """Download a checkpoint, or find it in ``cache``. Returns the folder of its snapshot, whose name is the commit.

    The configuration comes first, so that a repository that needs its own code is refused before its weights are downloaded.
    If the hub does not answer, the cached checkpoint of an earlier call is used.

    Raises:
        FactoryError: no answer within about 10 s and nothing cached (``hub_unreachable``), no such repository or revision
            (``hub_not_found``), one that requires an account (``hub_gated``), or no safetensors in it (``no_weights``).
        RefusedError: it needs its own code.
    """
    try:
        commit = _commit(hub_id, revision)
    except FactoryError as error:
        folder = cached(hub_id, cache, revision=revision) if error.error_type == "hub_unreachable" else None
        if folder is None:
            raise
    else:
        inspect_config(_download(hub_id, commit, cache, _CONFIG))
        _download(hub_id, commit, cache, [POOLING], but=[])
        folder = _download(hub_id, commit, cache, _WEIGHTS)
    inspect(folder)
    return folder


def fetch_config(hub_id: str, revision: str | None, cache: Path) -> Path:
    """Download a checkpoint's configuration alone, or find it in ``cache`` or in the cache of the hub's own client. Returns its folder.

    Raises:
        FactoryError: as :func:`fetch`, except for weights, which are not needed.
        RefusedError: it needs its own code.
    """
    folder = cached(hub_id, cache, revision=revision) or cached(hub_id, revision=revision)
    if folder is None:
        folder = _download(hub_id, _commit(hub_id, revision), cache, _CONFIG)
    inspect_config(folder)
    return folder


def resolve(plan: ModelPlan, cache: Path) -> ModelPlan:
    """The plan with its weights in a folder. Weights on the hub are fetched, and the plan is pinned to their commit.

    Raises:
        FactoryError: as :func:`fetch`.
        RefusedError: as :func:`fetch`.
    """
    if plan.weights != HUB or plan.hub_id is None:
        return plan
    folder = fetch(plan.hub_id, plan.revision, cache)
    return dataclasses.replace(plan, weights=str(folder), revision=folder.name)


def _commit(hub_id: str, revision: str | None) -> str:
    """The commit of a revision, requested with a timeout: ``snapshot_download`` makes the same request without one."""
    import huggingface_hub

    with _translated_errors(hub_id, revision):
        return str(huggingface_hub.HfApi().model_info(hub_id, revision=revision, timeout=TIMEOUT_S).sha)


def _download(hub_id: str, commit: str, cache: Path, patterns: list[str], but: Sequence[str] = _SUBFOLDERS) -> Path:
    import huggingface_hub

    with _translated_errors(hub_id, commit):
        folder = huggingface_hub.snapshot_download(
            hub_id,
            revision=commit,
            cache_dir=cache,
            allow_patterns=patterns,
            ignore_patterns=list(but),
            etag_timeout=TIMEOUT_S,
        )
    return Path(folder)


def cached(hub_id: str, cache: Path | None = None, *, revision: str | None = None) -> Path | None:
    """The folder of a snapshot that is already downloaded, or None. Makes no network request.

    ``cache`` None means the cache of the hub's own client. Without that client, the result is None.
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
def _translated_errors(hub_id: str, revision: str | None) -> Iterator[None]:
    """Turn errors of the hub's client into errors that say what to do."""
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
    except Exception as error:  # files, sockets, proxies, TLS and servers: each library below has its own errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]  # the other lines are advice that does not apply here
        message = f"{at} cannot be fetched ({reason}): connect to the hub, name a local checkpoint folder, or use weights: recipe"
        raise FactoryError(message, error_type="hub_unreachable") from error
