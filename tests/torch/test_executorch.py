"""ExecuTorch for real: what is delegated, what is left, what it lacks, and where a wrong result begins."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

from hwmatrix.errors import CellFailure, UnsupportedError  # noqa: E402 - after the checks that its package is there
from hwmatrix.measure.divergence import locate  # noqa: E402 - as above
from hwmatrix.models.outputs import flatten_outputs  # noqa: E402 - as above
from hwmatrix.records import Origin, Preparation  # noqa: E402 - as above
from hwmatrix.targets.executorch import in_float, lowering, runtime, trace  # noqa: E402 - as above
from hwmatrix.targets.executorch.in_float import GraphInFloat  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable

# Its tools warn about each other's use of torch.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def model_of(forward: Callable[..., Any]) -> Callable[[], Any]:
    """What makes a model with an embedding and this function of its result."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table = torch.nn.Embedding(16, 8)
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, input_ids: Any) -> dict[str, Any]:
            return {"result": forward(self.linear(self.table(input_ids)))}

    return lambda: Model().eval()


IDS = {"input_ids": torch.tensor([[1, 5, 2, 7]])}


def made(forward: Callable[..., Any], *, rewrite: bool = False) -> tuple[Any, Any, Any]:
    """The exported and the lowered model, and its own result."""
    load = model_of(forward)
    exported, lowered = lowering.make(load, IDS, only="torch", rewrite=rewrite)
    with torch.no_grad():
        return exported, lowered, load()(**IDS)["result"]


def lowered_by_executorch(model: Any) -> bytes:
    """The program that ExecuTorch's documentation makes of a model ("Model Export and Lowering")."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, given: dict[str, Any]) -> Any:
            return flatten_outputs(self.inner(**given))

    with torch.no_grad():
        program = torch.export.export(Flat().eval(), (dict(IDS),))
    made: bytes = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch().buffer
    return made


def bert() -> Any:
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(**sizes, max_position_embeddings=8, hidden_act="gelu_pytorch_tanh", attn_implementation="eager")
    return transformers.BertModel(config).eval()


@pytest.mark.parametrize("function", [torch.relu, functools.partial(torch.nn.functional.gelu, approximate="tanh"), torch.cumsum])
def test_the_program_is_that_of_executorch_s_own_calls(function: Any) -> None:
    load = model_of(lambda values: function(values, 1) if function is torch.cumsum else function(values))
    exported, lowered = lowering.make(load, IDS, only="torch")
    assert lowered.data == lowered_by_executorch(load())
    assert exported.prepared.preparation == (Preparation.TORCH_EXPORT, Preparation.FIXED_SHAPES)


def test_the_program_is_that_of_transformers_own_exporter() -> None:
    from transformers.exporters.configs import ExecutorchConfig
    from transformers.exporters.exporter_executorch import ExecutorchExporter

    exporter: Any = ExecutorchExporter
    program, _ = exporter().export_program(bert(), dict(IDS), ExecutorchConfig(backend="xnnpack"))
    exported, lowered = lowering.make(bert, IDS)
    assert lowered.data == program.buffer
    assert exported.prepared.preparation == (Preparation.TRANSFORMERS_EXPORT, Preparation.FIXED_SHAPES)


def test_samples_are_observed_without_the_exporter_s_patches_and_give_the_same_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.quantization.pt2e.observer import HistogramObserver

    samples = (IDS, {"input_ids": torch.tensor([[3, 15, 9, 0]])}, {"input_ids": torch.tensor([[4, 6, 8, 10]])})
    own, observe, seen = torch.bucketize, HistogramObserver._combine_histograms, []

    def combined(self: Any, *given: Any) -> Any:
        seen.append(torch.bucketize is own)
        return observe(self, *given)

    monkeypatch.setattr(HistogramObserver, "_combine_histograms", combined)
    found = lowering.make(model_of(torch.relu), IDS, only="torch", samples=samples)[1].data
    assert seen
    assert all(seen)
    seen.clear()
    with lowering.repaired("transformers"):
        assert found == lowering.make(model_of(torch.relu), IDS, only="torch", samples=samples)[1].data
    assert seen
    assert not any(seen), "the exporter still replaces it"


def test_xnnpack_takes_what_it_can_and_the_rest_is_named() -> None:
    exported, lowered, expected = made(torch.relu)
    assert lowered.delegates == 1
    assert lowered.delegated.total() >= 2, "the linear layer and the activation"
    assert lowered.kernels == {"aten::embedding.out": 1}
    assert (lowered.delegated_weights, lowered.constants) == (4 * (8 * 8 + 8), 4 * 16 * 8), "the linear layer's, and the embedding's"
    assert lowered.planned >= 4 * 4 * 8, "what the embedding gives to the linear layer"
    program = runtime.Program(lowered.data, kernels=lowered.kernels)
    times = program.times(exported.values(IDS))
    assert times is not None
    assert times.delegates_ms > 0
    assert times.kernels_ms.keys() == {"embedding.out"}
    torch.testing.assert_close(exported.named(program.run(exported.values(IDS)))["result"], expected)
    others = {"input_ids": torch.tensor([[3, 3, 0, 9]])}
    assert not torch.equal(exported.named(program.run(exported.values(others)))["result"], expected), "the inputs are arguments"


@pytest.mark.parametrize(
    ("forward", "without", "replaced"),
    [
        (lambda values: torch.nn.functional.gelu(values, approximate="tanh"), "gelu.default", "gelu"),
        (lambda values: torch.softmax(values - values.max(dim=-1, keepdim=True).values, -1), "max.dim", "softmax of differences"),
        (lambda values: values + (torch.round(values * 4).long() % 3), "remainder", "remainder"),
        (lambda values: values.view(1, 2, 2, 8).max(dim=1).values, None, "max"),
        (lambda values: torch.cat([torch.sort(values).values, values.argsort(-1).float()], -1), "sort", "argsort"),
    ],
)
def test_operators_are_replaced_on_request_alone_and_named(forward: Callable[..., Any], without: str | None, replaced: str) -> None:
    exported, lowered, expected = made(forward, rewrite=True)
    assert without is None or not any(without in name for name in (*lowered.delegated, *lowered.kernels))
    result = runtime.Program(lowered.data, kernels=lowered.kernels).run(exported.values(IDS))
    torch.testing.assert_close(exported.named(result)["result"], expected, rtol=1e-5, atol=1e-6)
    assert Preparation.REPLACED_OPERATORS in exported.prepared.preparation
    assert replaced in exported.prepared.replaced
    before = lowering._by_torch(model_of(forward)(), IDS, fixed=())
    assert str(before.program.graph) != str(exported.program.graph)
    assert not any(step.changes_model for step in before.prepared.preparation)


def test_a_model_without_anything_to_replace_says_so() -> None:
    with pytest.raises(UnsupportedError) as caught:
        made(torch.relu, rewrite=True)
    assert caught.value.error_type == "nothing_to_rewrite"


def test_numbers_of_float32_are_quantized_as_usual_and_no_integers() -> None:
    class Halved(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, input_ids: Any) -> dict[str, Any]:
            return {"result": self.linear(input_ids) * 0.5}

    inputs = {"input_ids": torch.ones(1, 4)}
    with pytest.raises(UnsupportedError) as caught:
        lowering.make(lambda: Halved().eval(), inputs, only="torch", samples=[inputs], rewrite=True)
    assert caught.value.error_type == "nothing_to_rewrite"


def test_an_operator_outside_the_core_set_is_named() -> None:
    with pytest.raises(UnsupportedError) as caught:
        made(torch.lgamma)
    assert caught.value.needs == ("aten::lgamma.default",)


def test_an_operator_without_a_kernel_is_named() -> None:
    _, lowered, _ = made(lambda values: torch.sort(values).values)
    with pytest.raises(UnsupportedError) as caught:
        runtime.Program(lowered.data, kernels=lowered.kernels)
    assert caught.value.needs == ("aten::sort.values",)


@pytest.mark.parametrize("change", [lambda data: data[:4] + b"ET99" + data[8:], lambda data: data[: len(data) // 2]])
def test_a_program_of_another_version_or_cut_off_is_refused(change: Callable[[bytes], bytes]) -> None:
    _, lowered, _ = made(torch.relu)
    with pytest.raises(CellFailure, match=r"0x:23 \(InvalidProgram\)") as caught:
        runtime.Program(change(lowered.data), kernels=())
    assert caught.value.error_type == "executorch_program"


def test_inputs_of_another_shape_end_the_run_with_a_code_in_words() -> None:
    _, lowered, _ = made(torch.relu)
    with pytest.raises(CellFailure, match=r"0x10 \(NotSupported\)") as caught:
        runtime.Program(lowered.data, kernels=lowered.kernels).run([torch.zeros(1, 5, dtype=torch.int64)])
    assert caught.value.error_type == "executorch_failed"


def test_the_values_of_a_right_graph_agree_with_pytorch() -> None:
    exported, _, expected = made(torch.tanh)
    found = trace.trace_graph(exported, IDS)
    assert {step.operator for step in found.steps} >= {"embedding.default", "linear.default", "tanh.default"}
    assert found.values.keys() == found.expected.keys()
    for name, value in found.values.items():
        torch.testing.assert_close(torch.from_numpy(value), torch.from_numpy(found.expected[name]))
    assert locate(found, {"result": expected.numpy() + 1.0}, 1e-4).origin is Origin.GRAPH, "the graph itself is not what is expected"


def test_a_quantized_program_rounds_as_its_samples_show_and_keeps_its_integers() -> None:
    """Numbers that are added to positions stay integers: positions index the table."""

    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.linear = torch.nn.Embedding(32, 8), torch.nn.Linear(8, 8)

        def forward(self, input_ids: Any) -> dict[str, Any]:
            return {"result": torch.relu(self.linear(self.table(input_ids + 3)))}

    samples = [{"input_ids": torch.randint(0, 16, (1, 4), generator=torch.Generator().manual_seed(seed))} for seed in range(8)]
    load = lambda: Shifted().eval()  # noqa: E731 - as lowering takes it
    exported, lowered = lowering.make(load, IDS, only="torch", samples=samples, rewrite=True)
    assert exported.prepared.preparation[-1] == Preparation.KEPT_INTEGERS
    assert "quantized by PT2E from 8 inputs" in exported.prepared.method
    assert lowered.delegated["quantized_decomposed.quantize_per_tensor.default"] >= 2
    with torch.no_grad():
        expected = load()(**IDS)["result"]
    found = exported.named(runtime.Program(lowered.data, kernels=lowered.kernels).run(exported.values(IDS)))["result"]
    error = float((found - expected).norm() / expected.norm())
    assert 1e-4 < error < 0.05, "8 bits of activations and weights"
    given = lowering.arrays_of(IDS)
    step = [node.args[1] for node in exported.program.graph.nodes if in_float.is_quantizing(node)][-1]
    steps = np.abs(found.numpy() - GraphInFloat(exported).outputs(given)["result"]) / step
    assert steps.max() < 1.01, "the same step, or the neighboring one"
    assert np.sum(steps > 0.01) <= 1, "of one number, beside the middle of two steps"


def test_positions_that_are_put_together_stay_integers() -> None:
    """XNNPACK's quantizer would round what is concatenated, whatever it is."""

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.linear = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 8)

        def forward(self, input_ids: Any) -> dict[str, Any]:
            return {"result": torch.cat([self.linear(self.table(torch.cat([input_ids, input_ids + 1], -1)))] * 2, -1)}

    exported, lowered = lowering.make(lambda: Twice().eval(), IDS, only="torch", samples=[IDS], rewrite=True)
    found = exported.named(runtime.Program(lowered.data, kernels=lowered.kernels).run(exported.values(IDS)))["result"]
    with torch.no_grad():
        expected = Twice().eval()(**IDS)["result"]
    assert found.shape == (1, 8, 16)
    assert difference(found.numpy(), expected.numpy()) < 0.05
    rounding = [node for node in exported.program.graph.nodes if in_float.is_quantizing(node)]
    assert len(rounding) == 3, "before and behind the product, and what is put together of it"


def test_the_values_of_a_quantized_graph_are_those_that_its_rounding_makes_and_named_by_what_is_rounded() -> None:
    """What XNNPACK makes one operator of with its rounding has no other value."""
    exported, _ = lowering.make(model_of(lambda x: torch.softmax(torch.relu(x), -1)), IDS, only="torch", samples=[IDS])
    found = trace.trace_graph(exported, IDS)
    operators = {step.name: step.operator for step in found.steps}
    assert [operators[name] for name in found.values] == ["embedding.default", "linear.default", "softmax.int"], "and relu with the product"
    assert found.results == {"result": "softmax"}
    for name, value in found.values.items():
        assert np.any(value != 0)
        np.testing.assert_allclose(value, found.expected[name], atol=1e-6, err_msg=name)


def test_a_wrong_kernel_is_found_in_a_quantized_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    exported, _ = lowering.make(model_of(lambda x: torch.softmax(torch.relu(x), -1)), IDS, only="torch", samples=[IDS])
    computed = runtime.Program.run

    def wrong(self: Any, arguments: Any) -> Any:
        table, product, result = computed(self, arguments)
        return table, product * 1.1, result * 1.1

    monkeypatch.setattr(runtime.Program, "run", wrong)
    found = locate(trace.trace_graph(exported, IDS), {"result": np.ones((1, 4, 8), np.float32)}, 1e-3, same_graph=True)
    assert (found.origin, found.operator) == (Origin.STEP, "linear.default")


def test_biases_are_rounded_to_the_steps_of_their_product() -> None:
    load = model_of(torch.relu)
    exported, _ = lowering.make(load, IDS, only="torch", samples=[IDS])
    module = exported.program.module()
    in_float.round_biases(module)
    (rounded,) = [value for name, value in module.named_buffers() if name.startswith("rounded_bias_of_")]
    exact = load().linear.bias.detach()
    (restored,) = [node for node in module.graph.nodes if "dequantize_per_channel" in str(node.target)]
    (product,) = restored.users
    weights = getattr(module, restored.args[1].target)
    steps = (rounded - exact).abs() / (weights * product.args[0].args[1])
    assert 0 < steps.max() <= 0.5 + 1e-3
    args, kwargs = exported.called(IDS)
    assert module(*args, **kwargs)["result"].shape == (1, 4, 8)


def difference(one: Any, other: Any) -> float:
    """The relative L2 error."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def test_a_model_without_anything_to_round_says_so() -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(16, 8)

        def forward(self, input_ids: Any) -> dict[str, Any]:
            return {"result": self.table(input_ids)}

    with pytest.raises(UnsupportedError) as caught:
        lowering.make(lambda: Table().eval(), IDS, only="torch", samples=[IDS])
    assert caught.value.error_type == "nothing_to_quantize"


def test_the_runtime_is_detected_without_its_exporter() -> None:
    """Every runner detects every kind of hardware, and the exporter's import takes seconds."""
    code = (
        "import sys\nfrom hwmatrix.targets.executorch import runtime\nfound = runtime.detect()[1]['delegates']\n"
        "assert 'executorch.exir' not in sys.modules, 'the exporter was imported'\n"
        "from executorch.runtime import Runtime\nassert found == sorted(Runtime.get().backend_registry.registered_backend_names), found\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
