"""Bundles make runs comparable: weights, configuration, inputs and expected outputs, in a folder named by its content.

``<cache>/<key>/`` holds ``manifest.json``, ``model/`` (what ``save_pretrained`` writes, safetensors only), ``inputs.safetensors``
and ``expected.safetensors``. The key is a checksum of the bundle's identity: the plan, its weights, and what made it
(:mod:`hwmatrix.models.provenance`). Exports are stored by the same key (:mod:`hwmatrix.models.onnx_export`), so neither is ever read if
other code or other packages made it. The manifest has the size and SHA-256 of every file. The digest is the checksum of the content
alone, so two versions that make the same content give the same digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.basics.files import sha256_of
from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import BundleError, FactoryError, UnmakableError
from hwmatrix.models import folder, provenance
from hwmatrix.models.build import HUB, RECIPE
from hwmatrix.models.checkpoint import inspect
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.folder import CALIBRATION, EXPECTED, GENERATION, HELD_OUT, INPUTS, MANIFEST, MODEL_DIR
from hwmatrix.models.learning.quality import Answers
from hwmatrix.models.manifests import BundleManifest
from hwmatrix.records import Dtype, Family, NoiseFloor

if TYPE_CHECKING:
    import numpy as np
    import torch

    from hwmatrix.records import ModelPlan

_Array: TypeAlias = "np.ndarray[Any, Any]"
_PARTIAL: Final = ".partial-"
_KEY_LENGTH: Final = 64
_LOG: Final = logging.getLogger(__name__)
_MODEL: Final = ("architecture", "model_class", "seed", "config", "role", "trained")
"""The fields of a plan that determine a model, besides its weights."""
_PLANNED: Final = (*_MODEL, "batch", "sequence_length", "new_tokens", "prompt_lengths")
"""Those that determine a bundle's content."""
_IDENTITY: Final = ("key", "identity", folder.CHECKSUM)
"""The fields of a manifest that are no content."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
    """A verified bundle. ``digest`` is the SHA-256 of its content; results record it."""

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
        """The class of transformers or diffusers that loads it."""
        return str(self.manifest["model_class"])

    @property
    def parameters(self) -> int:
        """How many parameters the model has."""
        return int(self.manifest["parameters"])

    @property
    def kinds(self) -> list[str]:
        """The kinds of input that the model gets: text, image, video, audio."""
        return [str(kind) for kind in self.manifest["modalities"]["given"]]

    @property
    def text_path(self) -> bool:
        """Whether the model accepts more than text but gets text alone."""
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
        """The result of training (``task``, ``accuracy``, ``steps``), or why the weights are random (``reason``); None: not requested."""
        found = self.manifest.get("training")
        return None if found is None else dict(found)

    @property
    def task_detail(self) -> str | None:
        """What the model is asked besides its one forward pass, or why nothing; None: it is a recipe with random weights."""
        found = self._task
        return None if found is None else str(found.get("reason") or found["detail"])

    @property
    def _task(self) -> dict[str, Any] | None:
        """What the manifest says of the task of a trained model, or of the samples of a checkpoint."""
        return self.training or self.manifest.get("samples")

    def floor(self, dtype: Dtype) -> NoiseFloor:
        """The noise floor of the model in a precision. One that is compared with its own rounded weights has none, but may overflow."""
        floors = self.manifest["floors"]
        if dtype.value not in floors:
            return NoiseFloor(outputs=None, overflows=floors.get(dtype.kernels_in.value, {}).get("overflows", False))
        return NoiseFloor(**{"outputs": None, **floors[dtype.value]})

    def held_out(self) -> HeldOut | None:
        """The examples that a target's answers are judged by; None if there is no task."""
        task = self._task
        if task is None or "answers" not in task:
            return None
        arrays = _load_arrays(self.path / HELD_OUT)
        return HeldOut(
            answers=Answers(**{**task["answers"], "outputs": tuple(task["answers"]["outputs"])}),
            inputs=_part(arrays, "input."),
            expected=_part(arrays, "expected."),
            labels=arrays["labels"],
            weights=arrays.get("weights"),
        )

    def calibration(self) -> list[dict[str, _Array]]:
        """Inputs that value ranges may be taken from, since none of them is evaluated; empty if the bundle has no task."""
        if not (self.path / CALIBRATION).is_file():
            return []
        arrays = _load_arrays(self.path / CALIBRATION)
        return [{name: array[number] for name, array in arrays.items()} for number in range(len(next(iter(arrays.values()))))]

    def generation(self) -> Generation:
        """What the model is asked to generate.

        Raises:
            UnmakableError: the reference cannot generate with it; the message says why (``no_generation``).
        """
        described = self.manifest.get("generation") or {"reason": "the bundle was made without generation"}
        if "reason" in described:
            raise UnmakableError(str(described["reason"]), error_type="no_generation")
        arrays = _load_arrays(self.path / GENERATION)

        def prompt(name: str) -> GenerationPrompt:
            own = _part(arrays, f"{name}.")
            inputs = _part(own, "input.")
            steps = tuple(_part(own, f"step{number}.") for number in range(own["tokens"].shape[1]))
            called = ({**inputs, **steps[0]}, *steps[1:]) if name not in described["irregular"] else ()
            return GenerationPrompt(name=name, inputs=inputs, tokens=own["tokens"], logits=own["logits"], steps=called)

        return Generation(
            forced=tuple(map(prompt, described["prompts"])),
            free=tuple(map(prompt, described["free"])),
            floors={Dtype(name): NoiseFloor(**{"outputs": None, **floor}) for name, floor in described["floors"].items()},
        )

    def load_expected(self) -> dict[str, torch.Tensor]:
        """The reference outputs by name, on the CPU: eager, float32, one thread."""
        return _load(self.path / EXPECTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Examples of a task that were not used in training, one per batch. The first axis of every array is the example.

    ``expected`` are the reference's outputs that hold the answers, ``labels`` the right answers. ``weights`` pool vectors of tokens.
    """

    answers: Answers
    inputs: dict[str, _Array]
    expected: dict[str, _Array]
    labels: _Array
    weights: _Array | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationPrompt:
    """A prompt with its continuation and the reference's logits (:class:`hwmatrix.models.generation.Prompt`).

    ``tokens`` has the shape (rows, steps), ``logits`` (steps, rows, vocabulary). ``steps`` are the arguments of each forward pass, without
    caches (:mod:`hwmatrix.models.generation_calls`); empty if transformers does not generate in such passes.
    """

    name: str
    inputs: dict[str, _Array]
    tokens: _Array
    logits: _Array
    steps: tuple[dict[str, _Array], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """What a model is asked to generate.

    The tokens of ``forced`` are forced on it. ``free`` are held-out examples that a trained model continues with its own tokens.
    ``floors`` are those of the logits after the first of ``forced``, by the number of the step.
    """

    forced: tuple[GenerationPrompt, ...]
    free: tuple[GenerationPrompt, ...]
    floors: dict[Dtype, NoiseFloor]

    def in_passes(self) -> Generation:
        """Return the prompts that transformers processes in one pass for each token: only these can be asked of an exported graph.

        Raises:
            UnmakableError: the first prompt, which exports are made for, is none of them (``no_generation``).
        """
        if not self.forced[0].steps:
            message = "transformers does not generate in one pass for each token, so there is no graph of a step"
            raise UnmakableError(message, error_type="no_generation")
        forced, free = (tuple(prompt for prompt in prompts if prompt.steps) for prompts in (self.forced, self.free))
        return dataclasses.replace(self, forced=forced, free=free)


def bundle_key(plan: ModelPlan) -> str:
    """The SHA-256 of everything that determines a bundle's content: 64 hexadecimal digits.

    Names, hub ids and lines of matrix.yaml do not count, so the same recipe under two names is one bundle. A folder's weights count
    by content, so a changed checkpoint is another bundle.

    Raises:
        FactoryError: the weights are neither a recipe nor a readable folder, or torch or transformers is missing.
        RefusedError: loading the folder's weights would run untrusted code.
    """
    return _checksum(_identity(plan))


def plan_part(of: ModelPlan | Mapping[str, Any], fields: Sequence[str] = _PLANNED) -> str:
    """The part of a bundle's identity that comes from the plan alone, as JSON. Takes a plan, or the identity in a manifest.

    Bundles that differ only in what made them or in the content of their weights have different keys and the same part.

    Raises:
        KeyError: the identity is not of this version.
    """
    named = {name: of[name] if isinstance(of, Mapping) else getattr(of, name) for name in fields}
    return json.dumps(named, sort_keys=True)


def is_of(bundle: Bundle, plan: ModelPlan) -> bool:
    """Whether a bundle is of this model. The files of a checkpoint are not compared, since its folder may be on another machine.

    Raises:
        KeyError: the bundle's identity is not of this version.
    """
    identity = bundle.manifest["identity"]
    if plan_part(identity) != plan_part(plan):
        return False
    made = plan.weights in {RECIPE, FACTORY}
    return bool(identity["weights"] == plan.weights) if made else isinstance(identity["weights"], dict)


def is_of_model(manifest: Mapping[str, Any], plan: ModelPlan) -> bool:
    """Whether a manifest is that of a bundle of this model and these weights, with whatever batch and lengths.

    Raises:
        KeyError: the manifest is not of this version.
        FactoryError: as :func:`bundle_key`.
    """
    identity = manifest["identity"]
    return plan_part(identity, _MODEL) == plan_part(plan, _MODEL) and identity["weights"] == _identity_of_weights(plan)


def find_or_build(plan: ModelPlan, cache: Path) -> Bundle:
    """The bundle of a plan: from the cache if it is there and intact, else built. Safe for concurrent processes.

    Raises:
        FactoryError: the model or its reference cannot be made; ``reference_not_finite`` if an expected output has NaN or Inf.
        BundleError: the cache cannot be written (``cache_not_writable``).
    """
    key = bundle_key(plan)
    with folder.locked(cache, key):
        return _find(key, cache) or _build(plan, key, cache)


def find_or_take(plan: ModelPlan, cache: Path, build: Callable[[Path], None]) -> Bundle:
    """The bundle of a plan: from the cache if it is there and intact, else from another process that cannot write there.

    ``build`` has it built in a cache of its own, a new folder that it gets. The bundle is verified, and moved into this cache. Whatever
    else was written there is removed. Exceptions of ``build`` propagate.

    Raises:
        FactoryError: as :func:`bundle_key`.
        BundleError: what was built is no bundle of this plan, or the cache cannot be written (``cache_not_writable``).
    """
    key = bundle_key(plan)
    with folder.locked(cache, key):
        found = _find(key, cache)
        if found is not None:
            return found
        _remove_leftovers(cache, key)
        with folder.writing(cache, f"the bundle of {plan.name}"), folder.fresh(cache / _partial(key)) as own:
            build(own)
            made = verify(own / key)
            if made.key != key:
                raise BundleError(f"{own / key} holds the bundle {made.key}", error_type="bundle_broken")
            folder.put(made.path, cache / key)
        return dataclasses.replace(made, path=cache / key)


def verify(path: Path) -> Bundle:
    """Check every file of a bundle against its manifest: size, SHA-256, none missing, none extra.

    Raises:
        BundleError: what is wrong, and with which file: ``bundle_missing``, ``bundle_version``, ``bundle_broken``.
    """
    try:
        manifest = read_json((path / MANIFEST).read_bytes())
        key, identity, _ = (manifest[name] for name in ("key", "identity", "files"))
        code = identity["made_by"]["code"]
    except FileNotFoundError as error:
        raise BundleError(f"{path} has no {MANIFEST}: it is not a bundle, or incomplete", error_type="bundle_missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path / MANIFEST} is broken: {error!r}", error_type="bundle_broken") from error
    if code != provenance.code_checksum():
        raise BundleError(f"{path} was made by another version of hwmatrix: make it again", error_type="bundle_version")
    if key != _checksum(identity):
        raise BundleError(f"{path / MANIFEST} does not match its key {key}", error_type="bundle_broken")
    folder.check(path, manifest, BundleManifest)
    content = {name: value for name, value in manifest.items() if name not in _IDENTITY}
    return Bundle(path=path, key=key, digest=_checksum(content), manifest=manifest)


def _find(key: str, cache: Path) -> Bundle | None:
    path = cache / key
    if not path.exists():
        return None
    try:
        bundle = verify(path)
        if bundle.key != key:
            raise BundleError(f"{path} holds the bundle {bundle.key}", error_type="bundle_broken")  # noqa: TRY301 - handled alike
    except BundleError as error:
        _LOG.warning("removing a damaged bundle: %s", error)
        folder.discard(path)
        return None
    return bundle


def _build(plan: ModelPlan, key: str, cache: Path) -> Bundle:
    """Build in a temporary folder, then rename, so that an interrupted build leaves nothing under the key. Needs the lock."""
    from hwmatrix.models.reference import fill

    _remove_leftovers(cache, key)
    with folder.replacing(cache / key, f"the bundle of {plan.name}", partial=_partial(key)) as partial:
        described = fill(plan, partial)
        folder.describe(partial, {"key": key, "identity": _identity(plan), **described})
    return verify(cache / key)


def _identity(plan: ModelPlan) -> dict[str, Any]:
    """What determines a bundle's content, as JSON."""
    for name in ("torch", "transformers", *(("diffusers",) if plan.family is Family.DIFFUSION else ())):
        if provenance.version(name) is None:
            raise FactoryError(f"{name} is not installed here: bundles are built in the reference image", error_type="not_installed")
    planned = {name: getattr(plan, name) for name in _PLANNED}
    return {**planned, "weights": _identity_of_weights(plan), "made_by": provenance.made_by()}


def _identity_of_weights(plan: ModelPlan) -> str | dict[str, str]:
    """How the weights are made; of a checkpoint, the checksum of every file that counts."""
    if plan.weights in {RECIPE, FACTORY}:
        return plan.weights
    if plan.weights == HUB:
        raise FactoryError(f"the weights of {plan.hub_id} have not been fetched from the hub yet", error_type="weights_not_fetched")
    checkpoint = Path(plan.weights)
    return {str(file.relative_to(checkpoint)): sha256_of(file) for file in inspect(checkpoint).identifying_files}


def _checksum(facts: Mapping[str, Any]) -> str:
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _partial(key: str) -> str:
    return f"{_PARTIAL}{key}-{os.getpid()}"


def _remove_leftovers(cache: Path, held: str) -> None:
    """Remove the leftovers of interrupted builds. A running build holds the lock of its key; ``held`` is the key that we hold."""
    for partial in cache.glob(f"{_PARTIAL}*"):
        key = partial.name.removeprefix(_PARTIAL)[:_KEY_LENGTH]
        with folder.unlocked(cache, key) as free:
            if free or key == held:
                _LOG.warning("removing the leftovers of an interrupted build: %s", partial)
                shutil.rmtree(partial, ignore_errors=True)


def _part(arrays: Mapping[str, _Array], prefix: str) -> dict[str, _Array]:
    """The arrays whose names have a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _load(file: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(file)


def _load_arrays(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    from safetensors.numpy import load_file

    return dict(load_file(file))
