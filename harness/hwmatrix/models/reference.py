"""The content of a bundle: a saved model, its inputs, and the outputs that every target is compared with."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.errors import BundleError, FactoryError
from hwmatrix.models import generation
from hwmatrix.models.build import RECIPE, build_diffusion, build_from, build_model, load_model
from hwmatrix.models.diffusion.inputs import diffusion_inputs
from hwmatrix.models.diffusion.recipes import recipe_of
from hwmatrix.models.factory.make import FACTORY, MOST_PARAMETERS, adjusted, attempts, modalities
from hwmatrix.models.factory.rules import override
from hwmatrix.models.factory.synthesis import synthesise
from hwmatrix.models.floors import noise_floors
from hwmatrix.models.folder import CALIBRATION, EXPECTED, GENERATION, HELD_OUT, INPUTS, MODEL_DIR
from hwmatrix.models.generation_calls import recorded, takes_mask
from hwmatrix.models.influence import without_influence
from hwmatrix.models.inputs import make_inputs
from hwmatrix.models.learning.quality import Answers
from hwmatrix.models.learning.teach import Taught, taught_model
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.models.samples.evaluation import CheckpointSamples, own_labels
from hwmatrix.models.samples.processing import NoSamplesError
from hwmatrix.records import Dtype, Family, Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import torch

    from hwmatrix.models.learning.tasks import Examples
    from hwmatrix.records import ModelPlan

_Tensor: TypeAlias = "torch.Tensor"
_Tensors: TypeAlias = "dict[str, torch.Tensor]"
_FLOOR_EXAMPLES: Final = 8
_FLOOR_SAMPLES: Final = 2
"""Held-out examples of a trained model, and samples of a checkpoint, that noise floors are taken from, besides the bundle's inputs."""
_FREE_EXAMPLES: Final = 8
"""Held-out examples that a trained model continues freely."""
_ROUNDING: Final = 1e-6
"""Two runs that differ by at most this relative L2 error differ by float32 rounding, not by random numbers."""


def fill(plan: ModelPlan, folder: Path) -> dict[str, Any]:
    """Write model, inputs and expected outputs into an empty folder, and return their manifest fields.

    The expected outputs come from the model loaded back from the folder, so that they cover saving and loading.

    Raises:
        FactoryError: the model, its inputs or its outputs cannot be made (``reference_failed``, ``reference_not_finite``,
            ``reference_not_repeatable``, and those of ``build_model``, ``load_model`` and ``make_inputs``).
        BundleError: a file cannot be written (``cache_not_writable``).
    """
    model_dir = folder / MODEL_DIR
    task: _Task | None = None
    taught: Taught | None = None
    made: dict[str, Any]
    if plan.family is Family.DIFFUSION:
        _save_model(build_diffusion(plan, recipe_of(plan.model_class).config if plan.weights == FACTORY else None), model_dir)
        model = load_model(model_dir, plan.model_class, Dtype.FLOAT32)
        inputs, made = diffusion_inputs(model, plan), {}
        expected = _expected(model, inputs, plan)
    elif plan.weights == FACTORY:
        model, inputs, expected, made = from_factory(plan, model_dir)
    else:
        built = build_model(plan)
        with deterministic():
            taught = taught_model(built, plan) if plan.trained else None
        _save_model(built, model_dir)
        model = load_model(model_dir, plan.model_class, Dtype.FLOAT32)
        if taught is not None:
            task, made = _Task.of_training(taught), {"training": taught.described}
        elif plan.weights != RECIPE:
            task, made = _task_of_checkpoint(model, plan)
        else:
            made = {}
        inputs = task.inputs if task is not None else make_inputs(model, plan)
        expected = _expected(model, inputs, plan)
    if task is not None:
        _save_tensors(_held_out_tensors(model, task, plan), folder / HELD_OUT)
        _save_tensors(_stacked(task.calibration), folder / CALIBRATION)
    if plan.new_tokens:
        learned = taught.examples if taught is not None and task is not None else ()
        made |= {"generation": _generation(plan, folder, inputs, learned[:_FREE_EXAMPLES])}
    if plan.role is Role.CANARY_WRONG:
        _save_model(build_model(dataclasses.replace(plan, seed=plan.seed + 1)), model_dir)
    _save_tensors(inputs, folder / INPUTS)
    _save_tensors(expected, folder / EXPECTED)
    floor_examples = _FLOOR_EXAMPLES if plan.trained else _FLOOR_SAMPLES
    return {
        "model_class": plan.model_class,
        "architecture": plan.architecture,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "inputs": _tensor_specs(inputs),
        "expected": _tensor_specs(expected),
        "floors": _floors(model, [inputs, *(task.examples[: math.ceil(floor_examples / plan.batch)] if task is not None else ())]),
        "modalities": modalities(model, inputs, ignored=_without_influence(model, inputs, expected, plan)),
        **made,
    }


def from_factory(plan: ModelPlan, model_dir: Path) -> tuple[torch.nn.Module, _Tensors, _Tensors, dict[str, Any]]:
    """The first of a type's configurations that builds, saves, loads and runs: its model, inputs, outputs and manifest fields.

    The model is saved into ``model_dir`` and loaded from there.

    Raises:
        FactoryError: none works; the error is that of the first.
        BundleError: the model cannot be written (``cache_not_writable``).
    """
    failures: list[FactoryError] = []
    for level, config in attempts(plan):
        try:
            _save_model(adjusted(build_from(plan, config, most=MOST_PARAMETERS), plan), model_dir)
            model = load_model(model_dir, plan.model_class, Dtype.FLOAT32)
            inputs = _synthesised(model, plan)
            expected = _expected(model, inputs, plan)
        except FactoryError as failure:
            failures.append(failure)
            shutil.rmtree(model_dir, ignore_errors=True)
            continue
        return model, inputs, expected, {"factory": {"level": level}}
    raise failures[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Task:
    """What a model is asked: the inputs of its one forward pass, held-out examples at the plan's batch, and inputs to calibrate on.

    ``labels`` None: the reference's own answers count as right. ``weights`` pool the vectors of tokens.
    """

    answers: Answers
    inputs: _Tensors
    examples: tuple[_Tensors, ...]
    calibration: tuple[_Tensors, ...]
    labels: tuple[_Tensor, ...] | None
    weights: tuple[_Tensor, ...] | None = None

    @classmethod
    def of_training(cls, taught: Taught) -> _Task | None:
        if taught.answers is None:
            return None
        return cls(
            answers=taught.answers,
            inputs=taught.inputs,
            examples=tuple(example.inputs for example in taught.examples),
            calibration=taught.calibration,
            labels=tuple(example.labels for example in taught.examples),
        )


def _task_of_checkpoint(model: torch.nn.Module, plan: ModelPlan) -> tuple[_Task | None, dict[str, Any]]:
    """The task of a checkpoint with a processor, and what a manifest says of it: ``samples``. Without a task, the reason."""
    try:
        samples = CheckpointSamples.read(model, plan)
        found = samples.evaluation(_run(model, samples.inputs, plan))
        task = _Task(
            answers=found.answers,
            inputs=samples.inputs,
            examples=found.examples,
            calibration=samples.calibration,
            labels=found.labels,
            weights=found.weights,
        )
    except (NoSamplesError, FactoryError) as failure:
        return None, {"samples": {"reason": f"random inputs: {failure}"}}
    described = {"processor": samples.processor, "detail": found.detail, "answers": dataclasses.asdict(found.answers)}
    return task, {"samples": described}


def _generation(plan: ModelPlan, folder: Path, inputs: _Tensors, learned: Sequence[Examples]) -> dict[str, Any]:
    """Write the prompts of a model that generates, with the reference's logits. Returns what the manifest says: or why there are none.

    ``learned`` are held-out examples of a trained model, which it continues freely.
    """
    model = load_model(folder / MODEL_DIR, plan.model_class, Dtype.FLOAT32, cache=True)
    if not generation.generates(model):
        return {"reason": f"transformers cannot generate with {plan.model_class}"}
    tensors: _Tensors = {}
    irregular: list[str] = []  # prompts for which generate does not call the model once for each token
    try:
        with deterministic():
            forced = generation.prompts(model, inputs, steps=plan.new_tokens, seed=plan.seed, lengths=plan.prompt_lengths)
            free = [generation.answered(model, example, plan.new_tokens, number) for number, example in enumerate(learned)]
            masked = takes_mask(model, forced[0])
            for prompt in (*forced, *free):
                logits, calls = recorded(model, prompt, masked=masked)
                logits = logits.float()
                if not bool(logits.isfinite().all()):
                    return {"reason": f"the reference's logits have NaN or infinity after the {prompt.name} prompt"}
                made = {"tokens": prompt.tokens, "logits": logits, **_prefixed("input", prompt.inputs)}
                irregular += [] if calls else [prompt.name]
                for number, call in enumerate(calls):
                    made |= _prefixed(f"step{number}", _changed(call.given, {} if number else prompt.inputs))
                tensors |= _prefixed(prompt.name, made)
            floors = generation.floors(model, forced[0])
    except Exception as error:  # noqa: BLE001 - a model's own code may raise anything; it becomes data
        return {"reason": f"the reference fails to generate: {type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    _save_tensors(tensors, folder / GENERATION)
    names = {"prompts": [prompt.name for prompt in forced], "free": [prompt.name for prompt in free]}
    return {**names, "irregular": irregular, "floors": floors}


def _prefixed(prefix: str, tensors: _Tensors) -> _Tensors:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _changed(tensors: _Tensors, known: _Tensors) -> _Tensors:
    """The tensors that differ from known ones."""
    return {name: tensor for name, tensor in tensors.items() if name not in known or not tensor.equal(known[name])}


def _held_out_tensors(model: torch.nn.Module, task: _Task, plan: ModelPlan) -> _Tensors:
    """The examples in one file: ``input.*``, ``expected.*`` (the reference, one batch after the other), ``labels``, ``weights``."""
    outputs = [_run(model, example, plan) for example in task.examples]
    labels = task.labels or [own_labels(task.answers, made, example) for made, example in zip(outputs, task.examples, strict=True)]
    return {
        **_prefixed("input", _stacked(task.examples)),
        **_prefixed("expected", _stacked(outputs, task.answers.outputs)),
        **_stacked([{"labels": tensor} for tensor in labels]),
        **(_stacked([{"weights": tensor} for tensor in task.weights]) if task.weights is not None else {}),
    }


def _stacked(batches: Sequence[_Tensors], names: Iterable[str] | None = None) -> _Tensors:
    import torch

    return {name: torch.stack([batch[name] for batch in batches]) for name in (batches[0] if names is None else names)}


def _floors(model: torch.nn.Module, runs: list[_Tensors]) -> dict[str, Any]:
    with deterministic():
        return noise_floors(model, runs)


def _synthesised(model: torch.nn.Module, plan: ModelPlan) -> _Tensors:
    try:
        return synthesise(model, plan, override(plan.architecture))
    except FactoryError:
        raise
    except Exception as error:  # a configuration's own code may raise anything; it becomes data
        message = f"inputs of {plan.model_class} cannot be generated: {type(error).__name__}: {error}"
        raise FactoryError(message, error_type="no_inputs") from error


def _expected(model: torch.nn.Module, inputs: _Tensors, plan: ModelPlan) -> _Tensors:
    """The model's outputs. It runs twice: if the outputs differ, the model uses random numbers and nothing can be compared with it."""
    once, again = _run(model, inputs, plan), _run(model, inputs, plan)
    other = sorted(
        name for name in once.keys() | again.keys() if name not in once or name not in again or not _nearly_equal(once[name], again[name])
    )
    if other:
        message = f"{plan.model_class} returns different numbers in each run ({', '.join(other[:3])}): nothing can be compared with them"
        raise FactoryError(message, error_type="reference_not_repeatable")
    return once


def _nearly_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal except for rounding: ViLT shuffles the patches of an image, so the order of its sums varies."""
    import torch

    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    difference, size = ((one - other).double().norm(), one.double().norm())
    return bool(difference <= _ROUNDING * size)


def _without_influence(model: torch.nn.Module, inputs: _Tensors, expected: _Tensors, plan: ModelPlan) -> frozenset[str]:
    return without_influence(lambda others: _run(model, others, plan), inputs, expected)


def _run(model: torch.nn.Module, inputs: dict[str, torch.Tensor], plan: ModelPlan) -> dict[str, torch.Tensor]:
    """One forward pass on the CPU, on one thread, with deterministic kernels."""
    import torch

    try:
        with deterministic(), torch.inference_mode():
            expected = flatten_outputs(model(**inputs, **call_options(model)))
    except Exception as error:  # a model's own code may raise anything; it becomes data
        message = f"{plan.model_class} fails on its inputs {sorted(inputs)}: {type(error).__name__}: {error}"
        raise FactoryError(message, error_type="reference_failed") from error
    if not expected:
        raise FactoryError(f"{plan.model_class} returns no tensors", error_type="reference_failed")
    broken = [name for name, tensor in expected.items() if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())]
    if broken:
        message = f"{plan.model_class} returns NaN or infinity on the CPU in float32 ({', '.join(broken)}): nothing can be compared with it"
        raise FactoryError(message, error_type="reference_not_finite")
    return expected


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Run with one thread and deterministic kernels, as the reference does."""
    import torch

    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=strict)
        torch.set_num_threads(threads)


def _save_model(model: Any, model_dir: Path) -> None:
    """Save as safetensors, without the path that the model was loaded from: it would change the checksum."""
    if hasattr(model.config, "_name_or_path"):
        model.config._name_or_path = ""  # noqa: SLF001 - transformers has no other way to set it
    try:
        model.save_pretrained(model_dir)
    except OSError:
        raise
    except Exception as error:  # safetensors has its own error for a full disk
        raise _write_error(error, model_dir) from error


def _save_tensors(tensors: dict[str, torch.Tensor], file: Path) -> None:
    from safetensors.torch import save_file

    try:
        # Copies: outputs may share memory, which the format cannot express.
        save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, file)
    except OSError:
        raise
    except Exception as error:  # safetensors has its own error for a full disk
        raise _write_error(error, file) from error


def _write_error(error: Exception, where: Path) -> Exception:
    import safetensors

    if isinstance(error, safetensors.SafetensorError):
        return BundleError(f"cannot write {where}: {error}; free space there, or name another cache", error_type="cache_not_writable")
    return FactoryError(f"the model cannot be saved: {type(error).__name__}: {error}", error_type="save_failed")


def _tensor_specs(tensors: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    kinds = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    return [{"name": name, "shape": list(tensor.shape), "dtype": kinds[name]} for name, tensor in tensors.items()]
