"""One model on one device, in this process: the API for generated tests.

It loads the model's bundle (weights, inputs, expected outputs) and runs it on the device: in PyTorch with a model from the resource
pool, or on any other target of hwmatrix.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.cache_folder import bundles_folder, needed_cache_folder
from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import UnavailableError, UnsupportedError
from hwmatrix.knowledge.fallback import AttemptPlan, FallbackReport, Tried, next_attempt, report_of
from hwmatrix.measure.parity import compare
from hwmatrix.models import hub
from hwmatrix.models.bundle import find_or_build
from hwmatrix.models.onnx_export import export_all
from hwmatrix.pool.loading import status_of
from hwmatrix.records import Placement, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.pool.pool import ResourcePool
    from hwmatrix.records import ModelPlan
    from hwmatrix.runner.place import Place

    Tensors = Mapping[str, torch.Tensor]

_ONE_VECTOR: Final = 2
"""The rank of an output with one vector per sample, whose length may happen to equal that of the text."""
_SCORES: Final = ("start_logits", "end_logits")
_ABSENT_OR_FULL: Final = frozenset({Status.UNAVAILABLE, Status.OOM})
_SPECIAL: Final = ("_token_id", "_token_ids", "_token_index")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generated:
    """The result of greedy generation: new tokens (batch, steps), and the logits behind each (batch, steps, vocabulary)."""

    tokens: Any
    logits: Any


class ModelUnderTest:
    """A model on a device. Create one with :func:`model_under_test`.

    Outputs are tensors by name, on the CPU; floating-point ones are float32.
    """

    def __init__(self, plan: ModelPlan, place: Place, bundle: Bundle, *, device_name: str, runtime: Any) -> None:
        """``runtime`` is the PyTorch module, or another target prepared for the bundle's inputs."""
        self.plan = plan
        self.place = place
        self.bundle = bundle
        self.device_name = device_name
        self._runtime = runtime

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The bundle's inputs, a fresh copy each time."""
        return self.bundle.load_inputs()

    @property
    def expected(self) -> dict[str, torch.Tensor]:
        """The expected outputs for those inputs: from PyTorch on the CPU, eager, in float32."""
        return self.bundle.load_expected()

    @property
    def is_torch(self) -> bool:
        """Whether PyTorch runs the model, so that more than a forward pass is possible: generation, caches, other shapes."""
        return self.place.is_torch

    @property
    def takes_other_shapes(self) -> bool:
        """Whether the model can run on inputs of other shapes than the bundle's: an ONNX export has fixed ones."""
        return not self.place.takes_onnx

    @property
    def module(self) -> torch.nn.Module:
        """The model, on its device.

        Raises:
            UnsupportedError: a runtime other than PyTorch runs it.
        """
        if not self.is_torch:
            raise UnsupportedError(f"{self.place.device} supports forward passes only", needs=("a PyTorch module",))
        module: torch.nn.Module = self._runtime
        return module

    @property
    def special_tokens(self) -> frozenset[int]:
        """The tokens with a special meaning for the model: start, end, padding, image placeholders."""
        config = read_json((self.bundle.model_dir / "config.json").read_bytes())
        parts = [config, *(part for part in config.values() if isinstance(part, dict))]
        named = [value for part in parts for name, value in part.items() if name.endswith(_SPECIAL)]
        return frozenset(token for value in named for token in (value if isinstance(value, list) else [value]) if isinstance(token, int))

    def let_go(self) -> None:
        """Drop the reference to the model, so that the pool can evict it. Nothing can be run afterwards."""
        self._runtime = None

    def run(self, inputs: Tensors | None = None) -> dict[str, torch.Tensor]:
        """One forward pass, on the bundle's inputs unless others are given. Runtimes other than PyTorch are prepared again for those.

        Raises:
            UnsupportedError: no part of it ran on the device.
        """
        if self.is_torch:
            return self._forward(self.inputs if inputs is None else inputs)
        target = self._runtime if inputs is None else _prepared(self.place, self.bundle, inputs)
        outputs = target.outputs(target.run())
        placed = target.placement()
        if placed.on_target <= 0:
            raise UnsupportedError(
                f"nothing ran on {self.place.device}: {placed.detail}", needs=(self.place.device,), error_type="fallback"
            )
        return {name: _torch().from_numpy(array) for name, array in outputs.items()}

    def differences(self, actual: Tensors, expected: Tensors) -> list[str]:
        """The differences as text: missing outputs, other shapes, NaN, errors beyond the tolerance. Empty if there are none."""
        return differences(actual, expected, tolerance=self.place.tolerance)

    def samples(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Different inputs of the same shapes: the bundle's, then copies with tokens, pixels or audio samples shifted.

        Special tokens and masks keep their positions.
        """
        return [self._shifted(shift) for shift in range(count)]

    def with_other_token(self, position: int, name: str = "input_ids") -> dict[str, torch.Tensor]:
        """The bundle's inputs with another ordinary token at one position of each text."""
        changed = self.inputs
        ordinary = [token for token in sorted(set(changed[name].flatten().tolist())) if token not in self.special_tokens]
        for row in changed[name]:
            row[position] = next(token for token in ordinary if token != int(row[position]))
        return changed

    def at_tokens(self, outputs: Tensors, where: slice, name: str = "input_ids") -> dict[str, torch.Tensor]:
        """The per-token outputs (vectors, or start and end scores of an answer), sliced to some of the tokens."""
        length = self.inputs[name].shape[1]
        return {
            output: tensor[:, where]
            for output, tensor in outputs.items()
            if (tensor.ndim > _ONE_VECTOR or output in _SCORES) and tensor.shape[1] == length
        }

    def run_together(self, samples: Sequence[Tensors]) -> tuple[list[dict[str, torch.Tensor]], FallbackReport]:
        """Run samples as one batch. If memory is too small, the batch is halved until it fits, and the report says so.

        Returns the outputs per sample; outputs without a batch dimension (a similarity table) are left out.

        Raises:
            Exception: what the model raises, except out of memory with more than one sample in the batch.
        """
        plan = AttemptPlan(order=(self.place.device,), batch=len(samples))
        tried: list[Tried] = []
        while (attempt := next_attempt(plan, tried)) is not None:
            try:
                outputs = self._in_batches(samples, attempt.batch)
            except Exception as error:
                if status_of(error, self.place.device) is not Status.OOM or attempt.batch == 1:
                    raise
                tried.append(Tried(attempt=attempt, status=Status.OOM, reason=str(error), error_type="memory_pressure"))
                continue
            tried.append(Tried(attempt=attempt, status=Status.PASS))
            return outputs, report_of(self.plan.name, plan, tried)
        raise AssertionError("a batch of one sample ends the loop")  # pragma: no cover

    def generate(self, tokens: int, *, use_cache: bool) -> Generated:
        """Generate ``tokens`` tokens greedily from the bundle's inputs with transformers' own ``generate``.

        Raises:
            UnsupportedError: a runtime other than PyTorch runs the model.
        """
        import torch

        transformers: Any = importlib.import_module("transformers")
        module: Any = self.module
        given = self.inputs
        begun = given.pop("decoder_input_ids", None)
        start = {} if begun is None else {"decoder_start_token_id": int(begun[0, 0])}
        config = transformers.GenerationConfig(
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            use_cache=use_cache,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
            **start,
        )
        with torch.inference_mode():
            made = transformers.GenerationMixin.generate(module, **self._moved(given), generation_config=config)
        return Generated(tokens=made.sequences[:, -tokens:].cpu().clone(), logits=torch.stack(made.logits, dim=1).float().cpu())

    def placement(self) -> Placement:
        """Where the model is: from its parameters and buffers in PyTorch, otherwise from the runtime's own record."""
        if not self.is_torch:
            placed: Placement = self._runtime.placement()
            return placed
        devices = Counter[str]()
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            devices[tensor.device.type] += tensor.numel()
        share = devices[self.place.torch_name] / devices.total()
        return Placement(on_target=share, detail=", ".join(f"{device}: {count}" for device, count in devices.most_common()))

    def _forward(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        from hwmatrix.models.outputs import call_options, flatten_outputs

        with torch.inference_mode():
            outputs = flatten_outputs(self.module(**self._moved(inputs), **call_options(self.module)))
        return {name: (tensor.float() if tensor.is_floating_point() else tensor).cpu() for name, tensor in outputs.items()}

    def _moved(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The inputs on the model's device, in its precision."""
        first: torch.Tensor = next(iter(self.module.parameters()))
        return {
            name: tensor.to(first.device, getattr(_torch(), self.place.dtype.value) if tensor.is_floating_point() else None)
            for name, tensor in inputs.items()
        }

    def _in_batches(self, samples: Sequence[Tensors], size: int) -> list[dict[str, torch.Tensor]]:
        found: list[dict[str, torch.Tensor]] = []
        for begin in range(0, len(samples), size):
            part = samples[begin : begin + size]
            outputs = self.run({name: _torch().cat([sample[name] for sample in part]) for name in part[0]})
            alone = {name: tuple(tensor.shape) for name, tensor in self.expected.items()}
            whole = {name: tensor for name, tensor in outputs.items() if alone.get(name)}
            batched = {name: tensor for name, tensor in whole.items() if tensor.shape == (alone[name][0] * len(part), *alone[name][1:])}
            found += [{name: tensor.chunk(len(part))[index] for name, tensor in batched.items()} for index in range(len(part))]
        return found

    def _shifted(self, shift: int) -> dict[str, torch.Tensor]:
        special = _torch().tensor(sorted(self.special_tokens))
        varied = self.inputs
        for name, tensor in varied.items():
            if tensor.is_floating_point():
                varied[name] = tensor.roll(shift, dims=-1)
            elif bool((tensor != tensor.flatten()[0]).any()):
                ordinary = ~_torch().isin(tensor, special)
                varied[name] = tensor.masked_scatter(ordinary, tensor[ordinary].roll(shift))
        return varied


@contextlib.contextmanager
def model_under_test(plan: ModelPlan, place: Place, *, pool: ResourcePool, cache: Path) -> Iterator[ModelUnderTest]:
    """A model on a device, for the length of a ``with`` block.

    The bundle comes from ``cache`` (``basics.cache_folder``), and is built if missing; a PyTorch model comes from ``pool``.

    Raises:
        UnavailableError: the hardware, driver, runtime or enough memory is missing, with the reason.
        FactoryError: the model cannot be built.
        BundleError: the cache cannot be written.
        UnsupportedError: the pool moved the model to other hardware for a reason other than memory.
    """
    device_name = place.check()
    bundle = find_or_build(hub.resolve(plan, cache), bundles_folder(cache))
    if place.takes_onnx:
        export_all(bundle, bundle.path.parent)
    name = f"{plan.name} {bundle.digest[:12]}"
    make = functools.partial(_module if place.is_torch else _prepared, place, bundle)
    runtime = pool.get_model(plan.family.value, name, make, place.preferences, dtype=place.dtype.value)
    model = ModelUnderTest(plan, place, bundle, device_name=device_name, runtime=runtime)
    del runtime  # only the model under test refers to it, so that the pool may evict it afterwards
    try:
        if model.is_torch:
            _check_placement(model, pool, name)
        yield model
    finally:
        model.let_go()


def differences(actual: Tensors, expected: Tensors, *, tolerance: float) -> list[str]:
    """What differs between ``actual`` and ``expected``, as text; empty if nothing."""
    compared = compare(
        {name: tensor.detach().numpy() for name, tensor in actual.items() if name in expected},
        {name: tensor.detach().numpy() for name, tensor in expected.items()},
    )
    found = [f"{name} is missing" for name in compared.missing]
    found += [f"{name}: NaN or infinity" for name in compared.not_finite]
    found += [f"other shape: {change}" for change in compared.reshaped]
    for output in compared.outputs:
        if output.parity is not None and output.parity.relative_error > tolerance:
            found.append(f"{output.name}: relative L2 error {output.parity.relative_error:.3g} exceeds {tolerance:g}")
    return found


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where bundles are kept (``basics.cache_folder``).

    Raises:
        ConfigError: this user has no home directory, and no variable names a folder.
    """
    return needed_cache_folder(environment)


def _module(place: Place, bundle: Bundle) -> torch.nn.Module:
    from hwmatrix.models.build import load_model

    return load_model(bundle.model_dir, bundle.model_class, place.dtype, attention=place.options.get("attention"))


def _prepared(place: Place, bundle: Bundle, inputs: Tensors | None = None) -> Any:
    """A target prepared for the given inputs, or for the bundle's."""
    target = place.target()
    target.check()
    target.load(bundle)
    target.prepare(bundle.input_arrays() if inputs is None else {name: tensor.numpy() for name, tensor in inputs.items()})
    return target


def _check_placement(model: ModelUnderTest, pool: ResourcePool, name: str) -> None:
    """Check that the pool did not fall back to other hardware: a test must not count that as a pass.

    Raises:
        UnavailableError: the device is missing or has too little memory.
        UnsupportedError: it refused the model for another reason.
    """
    placed = model.placement()
    if placed.on_target == 1:
        return
    reports = [report for report in pool.fallbacks if report.model == name]
    message = reports[-1].sentence() if reports else f"the model is not on {model.place.device} ({placed.detail})"
    if reports and all(tried.status in _ABSENT_OR_FULL for tried in reports[-1].attempts[:-1]):
        raise UnavailableError(message, error_type="memory_pressure")
    raise UnsupportedError(message, needs=(model.place.device,), error_type="fallback")


def _torch() -> Any:
    import torch

    return torch
