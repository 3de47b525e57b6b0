"""ExecuTorch for real: what is delegated, what is left, what it lacks, and where a wrong result begins."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

from hwmatrix.errors import CellFailure, UnsupportedError  # noqa: E402 - after the checks that its package is there
from hwmatrix.measure.divergence import locate  # noqa: E402 - as above
from hwmatrix.records import Origin  # noqa: E402 - as above
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


def made(forward: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """The exported and the lowered model, and its own result."""
    load = model_of(forward)
    exported, lowered = lowering.make(load, IDS, only="torch")
    with torch.no_grad():
        return exported, lowered, load()(**IDS)["result"]


@pytest.mark.parametrize("shortcut", ["sharing_sources", "compiling_what_is_read", "_printing_modules_only"])
@pytest.mark.parametrize("samples", [(), (IDS,)], ids=["float32", "a8w8"])
def test_a_program_is_the_same_without_each_shortcut(monkeypatch: pytest.MonkeyPatch, shortcut: str, samples: Any) -> None:
    def lowered() -> bytes:
        found: bytes = lowering.make(model_of(torch.relu), IDS, only="torch", samples=samples)[1].data
        return found

    short = lowered()
    monkeypatch.setattr(lowering, shortcut, contextlib.nullcontext)
    assert short == lowered()


@pytest.mark.parametrize("samples", [(), (IDS,)], ids=["float32", "a8w8"])
def test_a_constant_is_copied_for_delegates_without_a_check_of_its_own_and_the_program_is_the_same(
    monkeypatch: pytest.MonkeyPatch, samples: Any
) -> None:
    from executorch.exir.backend import utils

    weight = torch.linspace(-1.0, 2.0, 64).reshape(8, 8)
    check, copy = torch.export.ExportedProgram._validate, utils.duplicate_constant_node
    checks: list[bool] = []
    copying: list[str] = []

    def twice(value: Any) -> Any:
        return torch.nn.functional.linear(torch.cumsum(torch.nn.functional.linear(value, weight), 1), weight)

    def checked(program: Any) -> None:
        checks.append(bool(copying))
        check(program)

    def copied(program: Any, constant: str) -> Any:
        copying.append(constant)
        try:
            return copy(program, constant)
        finally:
            copying.clear()

    def lowered() -> Any:
        checks.clear()
        return lowering.make(model_of(twice), IDS, only="torch", samples=samples)[1]

    monkeypatch.setattr(torch.export.ExportedProgram, "_validate", checked)
    monkeypatch.setattr(utils, "duplicate_constant_node", copied)
    short = lowered()
    assert short.delegates == 2
    assert checks
    assert not any(checks)
    assert utils.duplicate_constant_node is copied, "as it was"
    monkeypatch.setattr(lowering, "_checking_copies_together", contextlib.nullcontext)
    assert short.data == lowered().data
    assert any(checks), "by itself, it checks after each copy"


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
    with lowering.patched():
        assert found == lowering.make(model_of(torch.relu), IDS, only="torch", samples=samples)[1].data
    assert seen
    assert not any(seen), "the exporter still replaces it"


def test_shortcuts_end_with_the_lowering_and_its_graphs_can_still_be_called_and_printed() -> None:
    from torch.fx.traceback import NodeSource

    before, text = torch.fx.GraphModule.recompile, torch.fx.GraphModule.__str__
    exported, _, expected = made(torch.relu)
    assert "__deepcopy__" not in vars(NodeSource), "as it was"
    assert torch.fx.GraphModule.recompile is before
    assert torch.fx.GraphModule.__str__ is text
    assert "_code" not in vars(torch.fx.GraphModule)
    module = exported.program.module()
    assert "embedding" in module.code
    torch.testing.assert_close(exported.named(torch.utils._pytree.tree_leaves(module(IDS)))["result"], expected)


def test_a_graph_as_text_is_its_modules_while_it_is_lowered() -> None:
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    with lowering._printing_modules_only():
        assert str(module) == repr(module)
        assert "torch.nn.functional.relu" not in str(module)
    assert "torch.nn.functional.relu" in str(module), "as it was"


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
    ("forward", "without"),
    [
        (lambda values: torch.nn.functional.gelu(values, approximate="tanh"), "gelu.default"),
        (lambda values: torch.softmax(values - values.max(dim=-1, keepdim=True).values, -1), "max.dim"),
        (lambda values: values + (torch.round(values * 4).long() % 3), "remainder"),
    ],
)
def test_what_it_computes_wrongly_is_said_otherwise(forward: Callable[..., Any], without: str) -> None:
    exported, lowered, expected = made(forward)
    assert not any(without in name for name in (*lowered.delegated, *lowered.kernels))
    result = runtime.Program(lowered.data, kernels=lowered.kernels).run(exported.values(IDS))
    torch.testing.assert_close(exported.named(result)["result"], expected, rtol=1e-5, atol=1e-6)


def test_a_maximum_of_four_dimensions_that_removes_its_axis_is_lowered() -> None:
    exported, lowered, expected = made(lambda values: values.view(1, 2, 2, 8).max(dim=1).values)
    result = runtime.Program(lowered.data, kernels=lowered.kernels).run(exported.values(IDS))
    torch.testing.assert_close(exported.named(result)["result"], expected)


def test_an_operator_outside_the_core_set_is_named() -> None:
    with pytest.raises(UnsupportedError) as caught:
        made(torch.lgamma)
    assert caught.value.needs == ("aten::lgamma.default",)


def test_an_order_is_made_of_the_largest() -> None:
    exported, lowered, expected = made(lambda values: torch.cat([torch.sort(values).values, values.argsort(-1).float()], -1))
    result = runtime.Program(lowered.data, kernels=lowered.kernels).run(exported.values(IDS))
    torch.testing.assert_close(exported.named(result)["result"], expected)


def test_an_operator_without_a_kernel_is_named() -> None:
    _, lowered, _ = made(lambda values: values + torch.randn_like(values))
    with pytest.raises(UnsupportedError) as caught:
        runtime.Program(lowered.data, kernels=lowered.kernels)
    assert caught.value.needs == ("aten::randn_like.out",)


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
    exported, lowered = lowering.make(load, IDS, only="torch", samples=samples)
    assert "quantized by PT2E from 8 inputs" in exported.method
    assert lowered.delegated["quantized_decomposed.quantize_per_tensor.default"] >= 2
    with torch.no_grad():
        expected = load()(**IDS)["result"]
    found = exported.named(runtime.Program(lowered.data, kernels=lowered.kernels).run(exported.values(IDS)))["result"]
    error = float((found - expected).norm() / expected.norm())
    assert 1e-4 < error < 0.05, "8 bits of activations and weights"
    given = lowering.arrays_of(IDS)
    same, other = GraphInFloat(exported), GraphInFloat(exported).nudged(0)
    step = [node.args[1] for node in exported.program.graph.nodes if in_float.is_quantizing(node)][-1]
    for result in (found.numpy(), other.outputs(given)["result"]):
        steps = np.abs(result - same.outputs(given)["result"]) / step
        assert steps.max() < 1.01, "the same step, or the neighboring one"
        assert np.sum(steps > 0.01) <= 1, "of one number, beside the middle of two steps"
    assert difference(other.outputs(given)["result"], other.outputs(given)["result"]) == 0, "nudged by the same each time"
    again = GraphInFloat(exported).nudged(1).outputs(given)["result"]
    assert difference(again, other.outputs(given)["result"]) > 0, "another draw is another nudge"
    assert exported.unrounded is not None
    before = GraphInFloat(exported.unrounded)
    assert difference(before.outputs(given)["result"], expected.numpy()) < 1e-6
    assert 0 < difference(before.nudged(0).outputs(given)["result"], before.outputs(given)["result"]) < 1e-5


def test_positions_that_are_put_together_stay_integers() -> None:
    """XNNPACK's quantizer would round what is concatenated, whatever it is."""

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.linear = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 8)

        def forward(self, input_ids: Any) -> dict[str, Any]:
            return {"result": torch.cat([self.linear(self.table(torch.cat([input_ids, input_ids + 1], -1)))] * 2, -1)}

    exported, lowered = lowering.make(lambda: Twice().eval(), IDS, only="torch", samples=[IDS])
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
    found = locate(trace.trace_graph(exported, IDS), {"result": np.ones((1, 4, 8), np.float32)}, 0.3, within=1e-3)
    assert (found.origin, found.operator) == (Origin.STEP, "linear.default")


def test_nudged_are_constants_and_what_integers_stand_for_but_not_the_sizes_of_steps() -> None:
    exported, _ = lowering.make(model_of(torch.relu), IDS, only="torch", samples=[IDS])
    nodes = exported.program.module().graph.nodes
    nudged = [node for node in nodes if in_float.is_nudged(node)]
    restored = [node for node in nodes if "dequantize" in str(node.target)]
    assert len(restored) >= 3, "the linear layer's weights, its input, and its result"
    assert set(restored) <= set(nudged)
    constants = [node for node in nudged if node.op == "get_attr"]
    assert {tuple(each.meta["val"].shape) for each in constants} == {(16, 8), (8,)}, "the embedding and the bias"


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
