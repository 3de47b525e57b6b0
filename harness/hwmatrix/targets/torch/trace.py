"""Compares the inputs and outputs of a model's layers with the reference's, to find where a wrong result begins in PyTorch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from hwmatrix.errors import TraceError
from hwmatrix.models.build import load_model
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.models.reference import deterministic
from hwmatrix.records import Dtype
from hwmatrix.records.traces import Step, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwmatrix.models.bundle import Bundle

    Array = np.ndarray[Any, Any]

MOST_BYTES: Final = 2**30
"""The limit in bytes for the values of one of the two runs. A cell's memory is limited, and its verdict does not need them."""


@dataclasses.dataclass(kw_only=True)
class _Call:
    """A layer in execution, with the names of its values so far: its arguments, and the results of the layers inside."""

    module: torch.nn.Module
    label: str
    known: list[str]


class Layers:
    """One run of a model that keeps the inputs and outputs of each layer.

    A layer that calls others gives several steps: one for the arguments of each inner layer, computed from its own arguments and the
    results of the earlier inner layers, and one for its result. So its own arithmetic can be told apart from that of the inner layers.
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self.steps: list[Step] = []
        self.values: dict[str, Array] = {}
        self.results: dict[str, str] = {}
        self._most = most_bytes
        self._bytes = 0
        self._calls: Counter[str] = Counter()
        self._open: list[_Call] = []
        self._kept: dict[tuple[Any, ...], Array] = {}

    def run(self, model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
        """Run one forward pass, as targets do.

        Raises:
            TraceError: the values take more than ``most_bytes``.
        """
        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._entering(name or type(model).__name__), with_kwargs=True))
            handles.append(module.register_forward_hook(self._left))
        torch.manual_seed(0)  # ViLT shuffles patches: use the same order in both runs
        try:
            with torch.inference_mode():
                outputs = flatten_outputs(model(**inputs, **call_options(model)))
        finally:
            for handle in handles:
                handle.remove()
        self.results = {name: self._keep(f"result {name}", tensor) for name, tensor in outputs.items()}
        self._kept.clear()
        last = self.steps.pop()  # the model's own step
        self.steps.append(dataclasses.replace(last, outputs=(*last.outputs, *self.results.values())))

    def _entering(self, name: str) -> Any:
        def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._calls[name] += 1
            label = name if self._calls[name] == 1 else f"{name}#{self._calls[name]}"
            given = self._keep_all(f"{label} in", {**dict(enumerate(args)), **kwargs})
            if self._open:
                self._add(self._open[-1], given)
            self._open.append(_Call(module=module, label=label, known=given))

        return enter

    def _left(self, module: torch.nn.Module, _args: tuple[Any, ...], result: Any) -> None:
        call = self._open.pop()
        while call.module is not module:  # a layer left by an exception, which its caller caught
            call = self._open.pop()
        given = self._keep_all(f"{call.label} out", result)
        self._add(call, given)
        if self._open:
            self._open[-1].known += given

    def _add(self, call: _Call, outputs: list[str]) -> None:
        if outputs:
            step = Step(name=call.label, operator=type(call.module).__name__, inputs=tuple(call.known), outputs=tuple(outputs))
            self.steps.append(step)

    def _keep_all(self, name: str, value: Any) -> list[str]:
        return [self._keep(each, tensor) for each, tensor in _tensors(name, value)]

    def _keep(self, name: str, tensor: torch.Tensor) -> str:
        """Keep a copy on the host, since layers may change their arguments. A result that is another layer's argument is kept once."""
        array = _on_host(tensor)
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape))
        before = self._kept.get(place)
        if before is not None and np.array_equal(before, array):
            array = before
        else:
            self._kept[place] = array
            self._bytes += array.nbytes
        if self._bytes > self._most:
            raise TraceError(f"the recorded layer outputs take more than {self._most // 2**20} MiB")
        self.values[name] = array
        return name


def trace_layers(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], bundle: Bundle) -> Trace:
    """Run a target's model on its device, and the bundle's model as the reference ran it, and compare their layers.

    Raises:
        TraceError: as :meth:`Layers.run`.
    """
    own, reference = Layers(), Layers()
    own.run(model, inputs)
    beside = load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32)
    with deterministic():
        reference.run(beside, bundle.load_inputs())
    common = [name for name, array in own.values.items() if name in reference.values and _same_kind(array, reference.values[name])]
    return Trace(
        steps=tuple(own.steps),
        values={name: own.values[name] for name in common},
        expected={name: reference.values[name] for name in common},
        results={name: value for name, value in own.results.items() if value in reference.values},
        against=f"the same layers in float32 on the CPU{_with_attention(beside)}",
    )


def _same_kind(one: Array, other: Array) -> bool:
    """Whether two values have the same meaning: some attention implementations take boolean masks, others numbers."""
    return bool(one.dtype.kind == other.dtype.kind)


def _with_attention(model: torch.nn.Module) -> str:
    configs = [getattr(module, "config", None) for module in model.modules()]
    kinds = {str(kind) for config in configs if (kind := getattr(config, "_attn_implementation", None))}
    return f", with {' and '.join(sorted(kinds))} attention" if kinds else ""


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a layer's arguments or result by name. Caches and other objects are not compared."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_nested and not value.is_meta:
            yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}", item)
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _tensors(f"{name}.{index}", item)


def _on_host(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    array: Array = tensor.to(device="cpu", dtype=torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True).numpy()
    return array
