"""Generates model tests: pytest files from one template per family, with the model's hardware and requirements."""

from __future__ import annotations

import dataclasses
import logging
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hwmatrix
from hwmatrix.basics.files import write_atomically
from hwmatrix.classifier.answers import template_for
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.generate.literals import WIDTH, literal, plain
from hwmatrix.generate.rendering import comment, file_for, mark, render
from hwmatrix.generate.test_plan import DevicePlan, Wish, classification_of, places_of, plan_of
from hwmatrix.knowledge.names import DEFAULT_MATRIX
from hwmatrix.knowledge.priorities import priority_for, reason_for
from hwmatrix.matrix.load import load
from hwmatrix.records import Basis, Classification, Size

if TYPE_CHECKING:
    from hwmatrix.matrix.spec import MatrixSpec
    from hwmatrix.records import ModelPlan

DEFAULT_FOLDER: Final = Path("generated_tests")
BATCH_SIZE: Final = 4
"""The batch size of the batch test: larger ones take long on a CPU, smaller ones miss errors that mix every second sample."""
_GENERATES: Final = re.compile(r"(LM|LMHeadModel|ForCausalLM|ForConditionalGeneration|ForSeq2SeqLM|ForSpeechSeq2Seq|ForImageTextToText)$")
_MIXES_MASKED: Final = frozenset({"canine", "convbert", "fnet", "funnel"})
"""Encoders that convolve, pool or transform over neighboring tokens, masked ones too, so that padding changes their output."""
_CONTRASTIVE: Final = frozenset({"contrastive", "video_text"})
_LOG: Final = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedTest:
    """A generated test: its model, its template and the classification behind it, its devices, and its path."""

    model: str
    classification: Classification
    template: str
    devices: tuple[str, ...]
    path: Path

    @property
    def run(self) -> str:
        """The command that runs it."""
        return f"pytest {self.path}"


def generate_test(model: str, *, spec: MatrixSpec | None = None, folder: Path = DEFAULT_FOLDER, wish: Wish | None = None) -> GeneratedTest:
    """Write the test of one model to a folder, in a file named after the model.

    ``model`` is a name in matrix.yaml, a hub id in the cache, or a checkpoint's folder; ``spec`` is the content of matrix.yaml
    (None: of that in the working folder). PyTorch is not needed before the test runs.

    Raises:
        ConfigError: matrix.yaml is missing; the model is only a name or cannot be built; there is no such device; a file
            that hwmatrix did not generate has the test's name; the folder cannot be written.
    """
    wish, spec = wish or Wish(), spec or load(DEFAULT_MATRIX).spec
    plan = plan_of(model, spec, wish)
    found = classification_of(plan, spec)
    template = template_for(plan.family)
    assert template is not None  # noqa: S101 - a plan has a family
    _LOG.debug("%s: family %s, subfamily %s, structure %s", model, plan.family.value, found.subfamily, found.structure)
    _LOG.debug("%s: template %s, because %s (confidence %.2f)", model, template, found.source, found.confidence)
    places = places_of(plan, found, spec, wish)
    path = _output_file(folder, model)
    text = f"{mark(model)}\n{_render(template, plan, found, places, path=path, model=model, spec=spec, wish=wish)}"
    try:
        write_atomically(path, text)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return GeneratedTest(model=model, classification=found, template=template, devices=tuple(place.device for place in places), path=path)


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
    """The test's source. Names and configurations reach the template only as literals and comments, never as code."""
    subfamily = found.subfamily or ""
    structure = found.structure.value if found.structure else None
    generates = bool(_GENERATES.search(plan.model_class)) and subfamily not in _CONTRASTIVE
    kind = ", ".join(part for part in (plan.family.value, subfamily, structure, plan.model_class) if part)
    size = "" if wish.size is Size.TINY else f" --size {wish.size.value}"
    device = f" --device {wish.device}" if wish.device else ""
    return render(
        f"{template}.j2",
        version=plain(hwmatrix.__version__),
        template=plain(template),
        title=plain(plan.name),
        about=plain(f"({kind})"),
        command=plain(f"hwmatrix generate --model {shlex.quote(model)}{size}{device}"),
        path=plain(path),
        model_code=_model_code(plan),
        place_codes=[_place_code(place) for place in places],
        notes="\n".join(comment(line) for line in (_order_note(found, wish), *_number_notes(places, spec))),
        timeout=wish.timeout_min,
        batch=BATCH_SIZE,
        sequence_length=plan.sequence_length,
        structure=structure,
        encoder_decoder=structure == "encoder-decoder" or subfamily == "seq2seq_lm",
        generates=generates,
        masked=plan.architecture not in _MIXES_MASKED,
        classes=subfamily in {"image_classifier", "video_classifier"},
        contrastive=subfamily in _CONTRASTIVE,
        frames=plan.model_class.endswith("ForCTC"),
    )


def _model_code(plan: ModelPlan) -> str:
    """The call that creates a model's plan, one argument per line."""
    values = {
        "name": literal(plan.name),
        "size": f"Size.{plan.size.name}",
        "family": f"Family.{plan.family.name}",
        "architecture": literal(plan.architecture),
        "model_class": literal(plan.model_class),
        "hub_id": None if plan.hub_id is None else literal(plan.hub_id),
        "revision": None if plan.revision is None else literal(plan.revision),
        "weights": literal(plan.weights),
        "trained": literal(plan.trained) if plan.trained else None,
        "seed": literal(plan.seed),
        "config": literal(plan.config, indent=4, column=11) if plan.config else None,
        "batch": literal(plan.batch),
        "sequence_length": literal(plan.sequence_length),
    }
    lines = "".join(f"    {name}={value},\n" for name, value in values.items() if value is not None)
    return f"ModelPlan(\n{lines})"


def _place_code(place: DevicePlan) -> str:
    """The call that creates a place: on one line if it fits, else one argument per line."""
    arguments = [f"device={literal(place.device)}", f"dtype=Dtype.{place.dtype.name}", f"tolerance={literal(place.tolerance)}"]
    arguments += [f"memory_mb={place.memory_mb}"] if place.memory_mb is not None else []
    arguments += [f"threads={place.threads}"] if place.threads != 1 else []
    arguments += [f"options={literal(place.options, 8, 16)}"] if place.options else []
    flat = f"Place({', '.join(arguments)})"
    if len(flat) <= WIDTH - 5 and "\n" not in flat:
        return flat
    lines = "".join(f"        {argument},\n" for argument in arguments)
    return f"Place(\n{lines}    )"


def _order_note(found: Classification, wish: Wish) -> str:
    """Why these devices, in this order."""
    if wish.device not in {None, "auto"}:
        return f"The requested device. Without --device: {', '.join(priority_for(found))}."
    return f"In the order in which such models are tried: {reason_for(found)}."


def _number_notes(places: tuple[DevicePlan, ...], spec: MatrixSpec) -> list[str]:
    """What the devices' numbers are based on, in sentences."""
    used = dict.fromkeys(place.dtype for place in places)
    reasons = [f"The tolerance of {dtype.value} is that of matrix.yaml: {spec.tolerances[dtype].reason}." for dtype in used]
    known = {basis: [place.device for place in places if place.basis is basis] for basis in Basis if basis is not Basis.NONE}
    bases = "; ".join(f"{basis.value} for {', '.join(devices)}" for basis, devices in known.items() if devices)
    return [*reasons, f"The needed memory (MiB) is {bases}."] if bases else reasons


def _output_file(folder: Path, model: str) -> Path:
    """The file to write; the folder is created if missing.

    Raises:
        ConfigError: the folder cannot be created, or a file that hwmatrix did not generate has the name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return file_for(model, folder)


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError([Problem(where=f"--output-dir {folder}", what=f"cannot be written: {error}", hint="name another folder")])
