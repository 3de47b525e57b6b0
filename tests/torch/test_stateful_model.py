"""A model that changes its own buffers in place, through every way in which a target that runs here gets its graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hwmatrix.models import onnx_exporters, openvino_conversion  # noqa: E402 - after the check that its package is there

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Exporters warn about each other's use of torch.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
IDS = {"input_ids": torch.tensor([[1, 5, 2, 7]])}


class StatefulModel(torch.nn.Module):
    """Counts its tokens and passes in buffers, as models do that keep statistics. Its outputs do not depend on them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(16, 8)
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("passes", torch.zeros(1))
        self.register_buffer("largest", torch.zeros(8))

    def forward(self, input_ids: Any) -> dict[str, Any]:
        hidden = torch.relu(self.linear(self.table(input_ids)))
        self.passes.add_(1)
        self.largest.copy_(torch.maximum(self.largest, hidden.detach().amax((0, 1))))
        return {"hidden": hidden, "pooled": hidden.mean(1)}


def loaded() -> StatefulModel:
    return StatefulModel().eval()


def by_executorch(_folder: Path) -> dict[str, Any]:
    pytest.importorskip("executorch")
    from hwmatrix.targets.executorch import lowering, runtime

    exported, lowered = lowering.make(loaded, IDS, only="torch")
    program = runtime.Program(lowered.data, kernels=lowered.kernels)
    program.run(exported.values(IDS))
    return {name: np.asarray(value) for name, value in exported.named(program.run(exported.values(IDS))).items()}


def by_openvino(_folder: Path) -> dict[str, Any]:
    openvino = pytest.importorskip("openvino")
    converted = openvino_conversion.by_trace(loaded(), dict(IDS))
    results = openvino.compile_model(converted.program, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(dict(IDS))
    return {name: value for name, value in zip(converted.output_names, results.values(), strict=True) if name is not None}


def by_onnxruntime(folder: Path) -> dict[str, Any]:
    onnxruntime = pytest.importorskip("onnxruntime")
    names = loaded()(**IDS)
    bundle: Any = SimpleNamespace(
        load_inputs=lambda: dict(IDS), manifest={"inputs": [{"name": name} for name in IDS], "expected": [{"name": name} for name in names]}
    )
    fields = onnx_exporters.EXPORTERS["torch"](bundle, folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    results = session.run(None, {name: IDS[name].numpy() for name in fields["inputs"]})
    return {name: value for name, value in zip(fields["outputs"], results, strict=True) if name is not None}


@pytest.mark.parametrize("run", [by_executorch, by_openvino, by_onnxruntime])
def test_its_outputs_are_right_and_its_state_is_none_of_them(
    run: Callable[[Path], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_exporters, "loaded", lambda _bundle: loaded())
    with torch.no_grad():
        expected = loaded()(**IDS)
    found = run(tmp_path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-5, atol=1e-6)
