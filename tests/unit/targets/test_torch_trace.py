"""Where a wrong result begins among the layers of a model: small modules, each with and without one fault."""

from __future__ import annotations

import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hwmatrix.errors import TraceError
from hwmatrix.measure.divergence import locate
from hwmatrix.records import Dtype, Origin, Settings

torch = pytest.importorskip("torch")

from hwmatrix.targets.torch import trace as torch_trace  # noqa: E402 - needs torch
from hwmatrix.targets.torch.cpu import TorchCpu  # noqa: E402

if TYPE_CHECKING:
    from hwmatrix.records import Divergence

pytestmark = pytest.mark.torch
TOLERANCE = 1e-4
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Cache:
    """An object between layers that is not a tensor."""


class Attention(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Its own arithmetic between two layers."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.q, self.out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, states: Any, *, mask: Any, cache: Cache) -> tuple[Any, Any, Cache]:
        weights = self.q(states).softmax(0 if self.fault == "attention" else -1)
        given = self.out(weights * mask.to(states.dtype))
        return given + (0.1 if self.fault == "result" else 0), None if self.fault == "mask" else weights, cache


class Twice(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Modifies its input in place. With the fault, its second call is wrong."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.calls = fault, 0

    def forward(self, states: Any) -> Any:
        self.calls += 1
        return states.mul_(3 if self.fault == "second" and self.calls % 2 == 0 else 2)


class Refuses(torch.nn.Module):  # type: ignore[name-defined, misc]
    def forward(self, states: Any) -> Any:
        raise ValueError(states)


class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
    """The parts of a transformers model that a trace needs."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(1)
        self.fault = fault
        self.attention, self.twice, self.refuses = Attention(fault), Twice(fault), Refuses()
        self.head = torch.nn.Linear(4, 2)
        if fault == "weights":
            with torch.no_grad():
                self.attention.out.weight += 1
        self.config = types.SimpleNamespace(_attn_implementation="sdpa" if fault else "eager")

    def forward(self, pixels: Any, **_options: Any) -> dict[str, Any]:
        mask = torch.ones(3, 1, dtype=torch.bool) if self.fault == "mask" else torch.full((3, 1), 2.0)
        mixed, _weights, _cache = self.attention(pixels * 1.0, mask=mask, cache=Cache())
        if self.fault == "residual":
            mixed = mixed - pixels
        twice = self.twice(self.twice(mixed.clone()))
        try:
            self.refuses(twice)
        except ValueError:
            logits = self.head(twice)
        return {"logits": logits, "indices": logits.argmax(-1)}


def traced(monkeypatch: pytest.MonkeyPatch, fault: str, *, dtype: Dtype = Dtype.FLOAT32, **options: Any) -> Any:
    reference = Model().eval()
    monkeypatch.setattr(torch_trace, "load_model", lambda *_args: reference)
    bundle: Any = types.SimpleNamespace(
        model_dir=Path(), model_class="Model", load_inputs=lambda: {"pixels": torch.from_numpy(X)}, input_arrays=lambda: {"pixels": X}
    )
    target = TorchCpu(settings=Settings(dtype=dtype, batch=1, sequence_length=1, threads=torch.get_num_threads()), options=options)
    target._model = Model(fault).to(getattr(torch, dtype.value)).eval()
    return target.trace(bundle)


def found(monkeypatch: pytest.MonkeyPatch, fault: str, **how: Any) -> Divergence:
    with torch.no_grad():
        expected = {name: tensor.numpy() for name, tensor in Model().eval()(torch.from_numpy(X)).items()}
    return locate(traced(monkeypatch, fault, **how), expected, TOLERANCE)


@pytest.mark.parametrize(
    ("fault", "at", "operator"),
    [
        ("attention", "attention", "Attention"),
        ("result", "attention", "Attention"),
        ("mask", "attention", "Attention"),
        ("weights", "attention.out", "Linear"),
        ("residual", "Model", "Model"),
        ("second", "twice#2", "Twice"),
    ],
)
def test_the_layer_whose_own_arithmetic_differs_is_named(monkeypatch: pytest.MonkeyPatch, fault: str, at: str, operator: str) -> None:
    divergence = found(monkeypatch, fault)
    assert (divergence.origin, divergence.at, divergence.operator) == (Origin.STEP, at, operator)
    assert divergence.inputs_error is not None
    assert divergence.relative_error is not None
    assert divergence.inputs_error < TOLERANCE < divergence.relative_error
    assert divergence.against == "the same layers in float32 on the CPU, with eager attention"


def test_if_all_layers_are_right_compilation_is_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, "").origin is Origin.FUSED


def test_another_precision_is_compared_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(monkeypatch, "", dtype=Dtype.BFLOAT16)
    for name, array in trace.values.items():
        assert array.dtype == trace.expected[name].dtype
        if array.dtype == np.float32:
            np.testing.assert_allclose(array, trace.expected[name], atol=0.1)
    assert not np.array_equal(trace.values["head out"], trace.expected["head out"])


def test_arguments_are_kept_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    values = traced(monkeypatch, "").values
    np.testing.assert_allclose(values["twice out"], 2 * values["twice in.0"])
    np.testing.assert_allclose(values["twice#2 out"], 4 * values["twice in.0"])


def test_other_kinds_of_masks_and_objects_that_are_not_tensors_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    values = traced(monkeypatch, "mask").values
    assert "attention in.mask" not in values
    assert "attention out.1" not in values
    assert "attention in.mask" in traced(monkeypatch, "").values
    assert not [name for name in values if "cache" in name or name.startswith("attention out.2")]


def test_a_step_computes_the_arguments_of_an_inner_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [step for step in traced(monkeypatch, "").steps if step.name == "attention"]
    assert [step.outputs for step in steps] == [("attention.q in.0",), ("attention.out in.0",), ("attention out.0", "attention out.1")]
    assert "attention.q out" in steps[1].inputs
    assert "attention.out out" not in steps[1].inputs
    assert "attention.out out" in steps[2].inputs


def test_too_many_values_are_refused() -> None:
    model = Model().eval()
    inputs = {"pixels": torch.from_numpy(X)}
    layers = torch_trace.Layers()
    layers.run(model, inputs)
    distinct = sum({id(array): array.nbytes for array in layers.values.values()}.values())
    assert distinct < sum(array.nbytes for array in layers.values.values())  # values passed between layers are stored once
    torch_trace.Layers(most_bytes=distinct).run(model, inputs)
    with pytest.raises(TraceError, match="the recorded layer outputs take more than 0 MiB"):
        torch_trace.Layers(most_bytes=distinct - 1).run(model, inputs)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_values_of_other_shapes_and_types_are_copied_to_the_host() -> None:
    class Odd(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return {"a": [torch.complex(x, x)], "b": x > 0, "c": x.to_sparse()}

    class Outer(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.odd = Odd()

        def forward(self, x: Any) -> Any:
            return self.odd(x)["b"]

    layers = torch_trace.Layers()
    layers.run(Outer(), {"x": torch.from_numpy(X)})
    assert layers.values["odd out.a.0"].shape == (3, 4, 2)
    assert layers.values["odd out.b"].dtype == np.bool_
    assert "odd out.c" not in layers.values
    assert layers.results == {"output": "result output"}
