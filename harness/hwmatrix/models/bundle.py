"""Bundles: what makes runs comparable. Weights, configuration, inputs and expected outputs, in a folder named by its content.

``<cache>/<key>/`` holds ``manifest.json``, ``model/`` (what ``save_pretrained`` writes, safetensors only), ``inputs.safetensors``
and ``expected.safetensors``. The key is a checksum of everything that decides what is in it; the manifest has the size and SHA-256
of every file, and its own SHA-256 is the bundle's digest. A manifest carries no time, machine or path: the same key built twice
by the same versions on the same processor gives the same digest.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.basics.files import sha256_of
from hwmatrix.errors import BundleError, FactoryError
from hwmatrix.models import folder
from hwmatrix.models.build import HUB, RECIPE
from hwmatrix.models.checkpoint import inspect
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.factory.rules import digest
from hwmatrix.models.folder import EXPECTED, HELD_OUT, INPUTS, MANIFEST, MODEL_DIR
from hwmatrix.models.learning.quality import Answers
from hwmatrix.records import BUNDLE_SCHEMA, NoiseFloor

if TYPE_CHECKING:
    import numpy as np
    import torch

    from hwmatrix.records import Dtype, ModelPlan

_Array: TypeAlias = "np.ndarray[Any, Any]"
_PARTIAL: Final = ".partial-"
_KEY_LENGTH: Final = 64
_LOG: Final = logging.getLogger(__name__)
_PLANNED: Final = ("architecture", "model_class", "seed", "config", "batch", "sequence_length", "role")
"""The fields of a plan that decide what a bundle holds, besides its weights."""
_TRAINED: Final = "recipe, trained/1"
"""The weights of a trained recipe, with the version of tasks and training: a change of what they give must change it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
    """A verified bundle. ``digest`` is the SHA-256 of its manifest: the identity that results carry."""

    path: Path
    key: str
    digest: str
    manifest: dict[str, Any]

    @property
    def model_dir(self) -> Path:
        """The checkpoint folder that targets load."""
        return self.path / MODEL_DIR

    @property
    def model_class(self) -> str:
        """The class of transformers that loads it."""
        return str(self.manifest["model_class"])

    @property
    def parameters(self) -> int:
        """How many parameters the model has."""
        return int(self.manifest["parameters"])

    @property
    def kinds(self) -> list[str]:
        """The kinds of input that it gives the model: text, image, video, audio."""
        return [str(kind) for kind in self.manifest["modalities"]["given"]]

    @property
    def text_path(self) -> bool:
        """Whether the model takes more than text and is given text alone."""
        return bool(self.manifest["modalities"]["text_path_only"])

    def load_inputs(self) -> dict[str, torch.Tensor]:
        """The arguments of ``forward`` by name, on the CPU."""
        return _load(self.path / INPUTS)

    def input_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs as arrays, for images without torch."""
        return _load_arrays(self.path / INPUTS)

    def expected_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The reference outputs as arrays."""
        return _load_arrays(self.path / EXPECTED)

    @property
    def training(self) -> dict[str, Any] | None:
        """How training went (``task``, ``accuracy``, ``steps``), or why the weights are random (``reason``); None: it was not asked for."""
        found = self.manifest.get("training")
        return None if found is None else dict(found)

    def floor(self, dtype: Dtype) -> NoiseFloor:
        """The noise floor of the model in a precision."""
        return NoiseFloor(**{"outputs": None, **self.manifest["floors"][dtype.value]})

    def held_out(self) -> HeldOut | None:
        """The examples that a target's answers are judged by; None: the model has learned nothing."""
        training = self.training
        if training is None or "answers" not in training:
            return None
        answers = Answers(
            kind=training["answers"]["kind"], outputs=tuple(training["answers"]["outputs"]), blank=training["answers"]["blank"]
        )
        arrays = _load_arrays(self.path / HELD_OUT)

        def part(prefix: str) -> dict[str, _Array]:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        return HeldOut(answers=answers, inputs=part("input."), expected=part("expected."), labels=arrays["labels"])

    def load_expected(self) -> dict[str, torch.Tensor]:
        """The reference outputs by name, on the CPU: eager, float32, one thread."""
        return _load(self.path / EXPECTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Examples of a trained model's task that training never saw, one a batch; the first axis of every array counts them.

    ``expected`` are the reference's outputs that hold the answers, ``labels`` the right answers.
    """

    answers: Answers
    inputs: dict[str, _Array]
    expected: dict[str, _Array]
    labels: _Array


def bundle_key(plan: ModelPlan) -> str:
    """The SHA-256 of everything that decides what a bundle holds: 64 hexadecimal digits.

    Names, hub ids and lines of matrix.yaml do not count, so the same recipe under two names is one bundle. The weights of a
    folder count by content, so a changed checkpoint is another bundle.

    Raises:
        FactoryError: the weights are neither a recipe nor a readable folder, or torch or transformers is not installed.
        RefusedError: the folder's weights could be loaded only by trusting code of strangers.
    """
    return _key_of(_identity(plan))


def plan_part(of: ModelPlan | Mapping[str, Any]) -> str:
    """What a bundle owes to its plan alone, of a plan, or of the identity in a manifest.

    Other versions, or weights of another content, make another key of the same part.

    Raises:
        KeyError: it is no identity of this version.
    """
    named = {name: of[name] for name in _PLANNED} if isinstance(of, Mapping) else _planned(of)
    return json.dumps(named, sort_keys=True)


def find_or_build(plan: ModelPlan, cache: Path) -> Bundle:
    """The bundle of a plan: from the cache if it is there and whole, else built. Safe for any number of processes at once.

    Raises:
        FactoryError: as :func:`build`.
        BundleError: as :func:`build`.
    """
    key = bundle_key(plan)
    with folder.locked(cache, key):
        return _find(key, cache) or _build(plan, key, cache)


def find(plan: ModelPlan, cache: Path) -> Bundle | None:
    """The bundle of a plan, if the cache has it. One that fails verification is logged and removed, never returned.

    Raises:
        FactoryError: as :func:`bundle_key`.
    """
    key = bundle_key(plan)
    with folder.locked(cache, key):
        return _find(key, cache)


def build(plan: ModelPlan, cache: Path) -> Bundle:
    """Build a bundle and put it into the cache, in place of one that may be there.

    Raises:
        FactoryError: the model or its reference cannot be made; ``reference_not_finite`` when an expected output has NaN or Inf.
        BundleError: the cache cannot be written (``cache_not_writable``).
    """
    key = bundle_key(plan)
    with folder.locked(cache, key):
        return _build(plan, key, cache)


def verify(path: Path) -> Bundle:
    """Check every file of a bundle against its manifest: size, SHA-256, none missing, none extra.

    Raises:
        BundleError: what is wrong, and with which file: ``bundle_missing``, ``bundle_version``, ``bundle_broken``.
    """
    try:
        raw = (path / MANIFEST).read_bytes()
        manifest = json.loads(raw)
        schema, key, identity, files = (manifest[name] for name in ("schema", "key", "identity", "files"))
    except FileNotFoundError as error:
        raise BundleError(f"{path} has no {MANIFEST}: it is no bundle, or half of one", error_type="bundle_missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path / MANIFEST} is broken: {error!r}", error_type="bundle_broken") from error
    if schema != BUNDLE_SCHEMA:
        message = f"{path} is of version {schema!r}, this hwmatrix reads {BUNDLE_SCHEMA!r}: build it again"
        raise BundleError(message, error_type="bundle_version")
    if key != _key_of(identity):
        raise BundleError(f"{path / MANIFEST} describes another bundle than its key {key} names", error_type="bundle_broken")
    folder.check(path, files)
    return Bundle(path=path, key=key, digest=hashlib.sha256(raw).hexdigest(), manifest=manifest)


def _find(key: str, cache: Path) -> Bundle | None:
    path = cache / key
    if not path.exists():
        return None
    try:
        bundle = verify(path)
        if bundle.key != key:
            raise BundleError(f"{path} holds the bundle {bundle.key}", error_type="bundle_broken")  # noqa: TRY301 - handled alike
    except BundleError as error:
        _LOG.warning("removing a bundle that cannot be trusted: %s", error)
        folder.discard(path)
        return None
    return bundle


def _build(plan: ModelPlan, key: str, cache: Path) -> Bundle:
    """Build beside the final place, and rename: whoever is interrupted leaves no half bundle under the key. Needs the lock."""
    from hwmatrix.models.reference import fill

    partial = cache / _partial(key)
    try:
        _sweep(cache, key)
        partial.mkdir()
        described = fill(plan, partial)
        manifest = {"schema": BUNDLE_SCHEMA, "key": key, "identity": _identity(plan), **described, "files": folder.listing(partial)}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        folder.settle(partial)
        folder.discard(cache / key)
        partial.rename(cache / key)
        folder.sync_folder(cache)
    except OSError as error:
        message = f"cannot write the bundle of {plan.name} under {cache}: {error}; free space there, or name another cache"
        raise BundleError(message, error_type="cache_not_writable") from error
    finally:
        if partial.exists():
            shutil.rmtree(partial, ignore_errors=True)
    return verify(cache / key)


def _identity(plan: ModelPlan) -> dict[str, Any]:
    """What decides a bundle's content, as JSON. A change of how hwmatrix builds must change BUNDLE_SCHEMA."""
    return {
        "schema": BUNDLE_SCHEMA,
        **_planned(plan),
        "weights": _weights_identity(plan),
        "versions": {name: _version(name) for name in ("torch", "transformers")},
    }


def _planned(plan: ModelPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in _PLANNED}


def _weights_identity(plan: ModelPlan) -> Any:
    if plan.weights == RECIPE:
        return recipe_identity(plan)
    if plan.weights == FACTORY:
        return {FACTORY: digest(plan.architecture)}
    if plan.weights == HUB:
        raise FactoryError(f"the weights of {plan.hub_id} have not been fetched from the hub yet", error_type="weights_not_fetched")
    checkpoint = Path(plan.weights)
    return {str(file.relative_to(checkpoint)): sha256_of(file) for file in inspect(checkpoint).files}


def recipe_identity(plan: ModelPlan) -> str:
    """What a manifest says of a recipe's weights."""
    return _TRAINED if plan.trained else RECIPE


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        message = f"{package} is not installed here: bundles are built in the reference image"
        raise FactoryError(message, error_type="not_installed") from error


def _key_of(identity: dict[str, Any]) -> str:
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _partial(key: str) -> str:
    return f"{_PARTIAL}{key}-{os.getpid()}"


def _sweep(cache: Path, held: str) -> None:
    """Remove what interrupted builds left. Whoever still builds holds the lock of its key; ``held`` is the key that we hold."""
    for partial in cache.glob(f"{_PARTIAL}*"):
        key = partial.name.removeprefix(_PARTIAL)[:_KEY_LENGTH]
        with (cache / folder.LOCKS / key).open("ab") as lock:
            try:
                if key != held:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _LOG.warning("removing what an interrupted build left: %s", partial)
            shutil.rmtree(partial, ignore_errors=True)


def _load(file: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(file)


def _load_arrays(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    from safetensors.numpy import load_file

    return dict(load_file(file))
