"""Tests of models, generated: plain pytest files from templates by family, which know the model's hardware and needs."""

from __future__ import annotations

import dataclasses
import logging
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import hwmatrix
from hwmatrix.advice.answers import template_for
from hwmatrix.advice.generated_file import file_for, mark
from hwmatrix.advice.literals import WIDTH, literal
from hwmatrix.advice.lookup import DEFAULT_MATRIX, look_up
from hwmatrix.advice.priorities import backend_of, priority_for, reason_for
from hwmatrix.advice.rendering import plain, render
from hwmatrix.advice.requirements import RequirementsError, requirements_for
from hwmatrix.advice.stand_ins import classify
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.matrix.load import load
from hwmatrix.models.types import is_type
from hwmatrix.records import TYPE_PREFIX, Backend, Basis, Classification, Dtype, Size
from hwmatrix.store.shard import write_atomically

if TYPE_CHECKING:
    from hwmatrix.matrix.spec import MatrixSpec, TargetSpec
    from hwmatrix.records import ModelPlan, Requirements

DEFAULT_FOLDER: Final = Path("generated_tests")
DEFAULT_TIMEOUT_MIN: Final = 30.0
BATCH_SIZE: Final = 4
"""Samples of the test of batches: more would take long on a CPU, fewer would hide what mixes every second one."""
_GENERATES: Final = re.compile(r"(LM|LMHeadModel|ForCausalLM|ForConditionalGeneration|ForSeq2SeqLM|ForSpeechSeq2Seq|ForImageTextToText)$")
_MIXES_MASKED: Final = frozenset({"canine", "convbert", "fnet", "funnel"})
"""Encoders that convolve, pool or transform over neighbouring tokens, masked ones too: padding is not invisible to them."""
_CONTRASTIVE: Final = frozenset({"contrastive", "video_text"})
_LOG: Final = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """How tests are wanted.

    ``device`` fixes the device, None takes all that the model's priorities name. ``timeout_min`` is how long the resource pool keeps a
    model that nobody uses. ``cache`` is the folder of bundles, ``database`` a merged database whose
    measurements count alone (None: those in the usual places).
    """

    size: Size = Size.TINY
    device: str | None = None
    timeout_min: float = DEFAULT_TIMEOUT_MIN
    cache: Path | None = None
    database: Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedTest:
    """A test that was written: for which model, by which template and why, on which devices, and where it is."""

    model: str
    classification: Classification
    template: str
    devices: tuple[str, ...]
    path: Path

    @property
    def run(self) -> str:
        """The command that runs it."""
        return f"pytest {self.path}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """A device of a generated test, with what the test must know of it. ``basis`` is what the memory stands on."""

    device: str
    dtype: Dtype
    tolerance: float
    memory_mb: int | None
    basis: Basis
    threads: int
    options: dict[str, Any]

    @property
    def code(self) -> str:
        """The call that makes it: on one line if it fits, else an argument a line."""
        arguments = [f"device={literal(self.device)}", f"dtype=Dtype.{self.dtype.name}", f"tolerance={literal(self.tolerance)}"]
        arguments += [f"memory_mb={self.memory_mb}"] if self.memory_mb is not None else []
        arguments += [f"threads={self.threads}"] if self.threads != 1 else []
        arguments += [f"options={literal(self.options, 8, 16)}"] if self.options else []
        flat = f"Place({', '.join(arguments)})"
        if len(flat) <= WIDTH - 5 and "\n" not in flat:
            return flat
        lines = "".join(f"        {argument},\n" for argument in arguments)
        return f"Place(\n{lines}    )"


def generate_test(model: str, *, spec: MatrixSpec | None = None, folder: Path = DEFAULT_FOLDER, wish: Wish | None = None) -> GeneratedTest:
    """Write the test of one model into a folder, under a name made from the model's.

    ``model`` is a name of matrix.yaml, a hub id that the cache has, or a checkpoint's folder; ``spec`` is what matrix.yaml says,
    None: the one of the working folder. Needs jinja2; torch is not needed before the test runs.

    Raises:
        ConfigError: there is no matrix.yaml, or no jinja2; the model is only a name, or cannot be built; there is no such device; a
            file that hwmatrix has not generated has the test's name; the folder cannot be written.
    """
    wish, spec = wish or Wish(), spec or load(DEFAULT_MATRIX).spec
    plan = plan_of(model, spec, wish)
    found = classification_of(plan, spec)
    template = template_for(plan.family)
    assert template is not None  # noqa: S101 - a plan has a family
    _LOG.debug("%s: family %s, subfamily %s, structure %s", model, plan.family.value, found.subfamily, found.structure)
    _LOG.debug("%s: template %s, because %s (confidence %.2f)", model, template, found.source, found.confidence)
    places = places_of(plan, found, spec, wish)
    path = _prepared(folder, model)
    text = f"{mark(model)}\n{_render(template, plan, found, places, path=path, model=model, spec=spec, wish=wish)}"
    try:
        write_atomically(path, text)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return GeneratedTest(model=model, classification=found, template=template, devices=tuple(place.device for place in places), path=path)


def plan_of(model: str, spec: MatrixSpec, wish: Wish) -> ModelPlan:
    """What a name stands for, in the size wished for.

    Raises:
        ConfigError: nothing that a test could load, or something that cannot be built, with the reason.
    """
    plan = None if model.startswith(TYPE_PREFIX) else look_up(model, spec=spec, cache=wish.cache, size=wish.size)
    where = f"--model {plain(model)}"
    if plan is None:
        what = "is only a name: there are neither weights nor a recipe of it here"
        hint = "give it an entry in matrix.yaml, name a checkpoint's folder, or fetch it: nox -s matrix -- --models owner/name"
        if is_type(model):
            what = "is a type of transformers, and a model made from its type alone is for hwmatrix's own runs"
            hint = f"run it: hwmatrix test --model {model}; for a test of it, give it an entry in matrix.yaml"
        raise ConfigError([Problem(where=where, what=what, hint=hint)])
    if plan.unbuildable:
        other = Size.FULL if plan.size is Size.TINY else Size.TINY
        hint = f"--size {other.value} may be buildable" if _buildable(plan.name, spec, other) else "there is nothing to test"
        raise ConfigError([Problem(where=where, what=f"cannot be built in {plan.size.value} size: {plan.unbuildable}", hint=hint)])
    return plan


def _buildable(name: str, spec: MatrixSpec, size: Size) -> bool:
    return name in spec.models and spec.models[name].variant(size).unbuildable is None


def classification_of(plan: ModelPlan, spec: MatrixSpec) -> Classification:
    """What a model is. The family is that of its plan: matrix.yaml's, or what its configuration says."""
    config = spec.models[plan.name].tiny.config if plan.name in spec.models else {}
    found = classify(plan.name, model_class=plan.model_class, architecture=plan.architecture, config=plan.config or config)
    return found if found.family is plan.family else dataclasses.replace(found, family=plan.family, source="matrix.yaml says so")


def places_of(plan: ModelPlan, found: Classification, spec: MatrixSpec, wish: Wish) -> tuple[DevicePlan, ...]:
    """The devices to test on, in order: those that the model's priorities name, or the one that is wished for.

    Raises:
        ConfigError: there is no such device.
    """
    names = (backend_of(wish.device).value,) if wish.device not in {None, "auto"} else priority_for(found)
    return tuple(_place(name, plan, found, spec, wish) for name in names)


def _place(name: str, plan: ModelPlan, found: Classification, spec: MatrixSpec, wish: Wish) -> DevicePlan:
    backend = Backend(name)
    target = next((target for target in spec.targets.values() if target.backend is backend), None)
    dtype = _dtype(target, spec)
    needs = _needs(name, plan, found, wish, dtype)
    return DevicePlan(
        device=name,
        dtype=dtype,
        tolerance=spec.tolerances[dtype].relative_error,
        memory_mb=needs.min_memory_mb if needs else None,
        basis=needs.basis if needs else Basis.NONE,
        threads=target.threads if target else 1,
        options=target.options if target else {},
    )


def _dtype(target: TargetSpec | None, spec: MatrixSpec) -> Dtype:
    """float32 where the target computes in it; else the first of its precisions, or of the tolerances."""
    listed = target.dtypes if target else tuple(spec.tolerances)
    return Dtype.FLOAT32 if Dtype.FLOAT32 in listed else listed[0]


def _needs(name: str, plan: ModelPlan, found: Classification, wish: Wish, dtype: Dtype) -> Requirements | None:
    try:
        return requirements_for(
            plan, model_name=plan.name, classification=found, hardware=name, dtype=dtype, database=wish.database, cache=wish.cache
        )
    except RequirementsError as error:
        _LOG.info("%s on %s: %s", plan.name, name, error)
        return None


def _render(
    template: str,
    plan: ModelPlan,
    found: Classification,
    places: tuple[DevicePlan, ...],
    *,
    path: Path,
    model: str,
    spec: MatrixSpec,
    wish: Wish,
) -> str:
    subfamily = found.subfamily or ""
    structure = found.structure.value if found.structure else None
    generates = bool(_GENERATES.search(plan.model_class)) and subfamily not in _CONTRASTIVE
    kind = ", ".join(part for part in (plan.family.value, subfamily, structure, plan.model_class) if part)
    size = "" if wish.size is Size.TINY else f" --size {wish.size.value}"
    device = f" --device {wish.device}" if wish.device else ""
    return render(
        f"tests/{template}.j2",
        version=hwmatrix.__version__,
        template=template,
        about=f"({kind})",
        command=f"hwmatrix generate --model {shlex.quote(model)}{size}{device}",
        path=path,
        model=plan,
        places=[place.code for place in places],
        reasons=_reasons(places, spec),
        order=_order(found, wish),
        timeout=wish.timeout_min,
        batch_size=BATCH_SIZE,
        structure=structure,
        encoder_decoder=structure == "encoder-decoder" or subfamily == "seq2seq_lm",
        generates=generates,
        masked=plan.architecture not in _MIXES_MASKED,
        classes=subfamily in {"image_classifier", "video_classifier"},
        contrastive=subfamily in _CONTRASTIVE,
        frames=plan.model_class.endswith("ForCTC"),
    )


def _order(found: Classification, wish: Wish) -> str:
    """Why these devices, in this order."""
    if wish.device not in {None, "auto"}:
        return f"The device that was asked for. Without --device: {', '.join(priority_for(found))}."
    return f"In the order in which such a model is tried: {reason_for(found)}."


def _reasons(places: tuple[DevicePlan, ...], spec: MatrixSpec) -> list[str]:
    """What the numbers of the places stand on."""
    used = dict.fromkeys(place.dtype for place in places)
    reasons = [f"The tolerance of {dtype.value} is matrix.yaml's: {spec.tolerances[dtype].reason}." for dtype in used]
    known = {basis: [place.device for place in places if place.basis is basis] for basis in Basis if basis is not Basis.NONE}
    told = "; ".join(f"{basis.value} for {', '.join(devices)}" for basis, devices in known.items() if devices)
    return [*reasons, f"The memory that it needs (MiB) is {told}."] if told else reasons


def _prepared(folder: Path, model: str) -> Path:
    """The file to write, in a folder that is there.

    Raises:
        ConfigError: the folder cannot be made, or a foreign file has the name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return file_for(model, folder)


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError([Problem(where=f"--output-dir {folder}", what=f"cannot be written: {error}", hint="name another folder")])
