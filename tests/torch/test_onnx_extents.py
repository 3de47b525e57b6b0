"""Inputs that tell extents: which they are, and that only what follows from them alone is fixed when a model is traced."""

from __future__ import annotations

from typing import Any

import pytest

from hwmatrix.models.onnx_extents import extents, held

pytestmark = pytest.mark.torch


def test_whole_numbers_with_names_of_extents_are_extents() -> None:
    import torch

    whole, real = torch.ones(2, dtype=torch.int64), torch.ones(2)
    given = {"image_grid_thw": whole, "target_sizes": whole, "spatial_shapes": whole, "feature_lens": whole, "sizes": real}
    given |= {"feature_attention_mask": whole}
    others = {"input_ids": whole, "attention_mask": whole, "position_ids": whole, "resizes_x": whole, "pixel_values": real}
    assert extents(given | others) == tuple(name for name in given if name != "sizes")
    assert extents({}) == ()


def module(body: Any) -> Any:
    import torch

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
            return body(x, grid_thw)  # type: ignore[no-any-return]

    return Model().eval()


def pieces(x: Any, grid: Any) -> Any:
    """As towers do it: cut by the extents, and loop over them."""
    parts = x.split((grid[:, 1] * grid[:, 2]).tolist())
    return sum(part.sum() * int(h) for part, (_, h, _) in zip(parts, grid, strict=True))


def test_python_that_reads_extents_is_traced_when_they_are_held() -> None:
    import torch

    model, x, grid = module(pieces), torch.arange(10.0), torch.tensor([[1, 2, 3], [1, 4, 1]])
    expected = model(x, grid)
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(model, (), {"x": x, "grid_thw": grid})
    original = model.forward
    with held(model, {"grid_thw": grid}):
        traced = torch.export.export(model, (), {"x": x})
        assert model(x).item() == expected.item()
    assert model.forward == original
    assert traced.module()(x=x).item() == expected.item()
    assert traced.module()(x=2 * x).item() == 2 * expected.item()


def test_what_depends_on_other_inputs_is_not_fixed() -> None:
    import torch

    model = module(lambda x, grid: x * 2 if bool((x[: int(grid[0])] > 0).all()) else x)
    with held(model, {"grid_thw": torch.tensor([1, 2])}), pytest.raises(Exception, match="data-dependent"):
        torch.export.export(model, (), {"x": torch.arange(3.0)})


def test_the_caller_s_extents_are_not_changed() -> None:
    import torch

    grid = torch.tensor([1, 2])
    model = module(lambda x, own: x * own.add_(1)[0])
    with held(model, {"grid_thw": grid}):
        assert model(torch.ones(1)).item() == 2
    assert grid.tolist() == [1, 2]


@pytest.mark.parametrize("way", ["add_", "item", "plus"])
def test_a_known_tensor_that_would_get_unknown_values_is_refused(way: str) -> None:
    import torch

    def body(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        known = grid * 1.0
        if way == "add_":
            known.add_(x)
        elif way == "item":
            known[0] = x[0]
        else:
            known += x
        return known

    model = module(body)
    with held(model, {"grid_thw": torch.tensor([1, 2])}), pytest.raises(RuntimeError, match="depends on input sizes alone"):
        torch.export.export(model, (), {"x": torch.ones(2)})


def test_what_begins_with_plain_numbers_is_computed_as_well() -> None:
    import torch

    def body(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        index = torch.arange(int(grid.prod()))
        lengths = torch.tensor([len(index), int(grid[0])])
        return x[: int(index[index != 3].sum())] + int(lengths.unique_consecutive()[0])

    model, grid = module(body), torch.tensor([2, 3])
    with held(model, {"grid_thw": grid}):
        traced = torch.export.export(model, (), {"x": torch.arange(20.0)})
    called = {str(node.target) for node in traced.graph.nodes if node.op == "call_function"}
    assert not any("arange" in name or "unique" in name for name in called)
    assert torch.equal(traced.module()(x=torch.arange(20.0)), torch.arange(12.0) + 6)


def test_extents_may_be_plain_numbers() -> None:
    import torch

    model = module(lambda x, grid: x[: grid[0][0]])
    with held(model, {"grid_thw": [(2, 3)]}):
        assert torch.export.export(model, (), {"x": torch.ones(4)}).module()(x=torch.ones(4)).tolist() == [1, 1]


def test_only_a_trace_that_fails_by_them_holds_extents_constant() -> None:
    import torch

    from hwmatrix.models.onnx_exporters import traced_with_any_shape

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, patch_sizes: torch.Tensor) -> torch.Tensor:
            return self.body(x, patch_sizes)  # type: ignore[no-any-return,operator]

    def model_of(body: Any) -> Any:
        model = Model()
        model.body = body
        return model

    tried: list[list[str]] = []

    def export(model: torch.nn.Module, given: dict[str, Any], axes: dict[str, Any] | None) -> Any:
        assert (axes is not None) == bool(tried)
        tried.append(list(given))
        shapes = {"x": {0: torch.export.Dim.AUTO}, "patch_sizes": None}
        return torch.export.export(model, (), given, dynamic_shapes={name: shapes[name] for name in given})

    sample = {"x": torch.arange(10.0), "patch_sizes": torch.tensor([6, 4])}
    program, prepared = traced_with_any_shape(lambda: model_of(lambda x, sizes: x[: int(sizes[0])].sum() + x.sum()), sample, export)
    assert tried == [["x", "patch_sizes"], ["x"]]
    assert prepared == {}
    assert program.module()(x=torch.arange(20.0)).item() == 15 + 190  # another length, the same size
    tried.clear()
    traced_with_any_shape(lambda: model_of(lambda x, sizes: x.sum() + sizes.sum()), sample, export)
    assert tried == [["x", "patch_sizes"]]
    tried.clear()
    with pytest.raises(Exception, match="data-dependent") as failed:
        traced_with_any_shape(lambda: model_of(lambda x, _: x[: int(x[0])]), sample, export)
    assert tried == [["x", "patch_sizes"], ["x"]]
    assert "The first attempt, with every axis dynamic, had failed: GuardOnDataDependentSymNode" in failed.value.__notes__[-1]
    tried.clear()
    with pytest.raises(MemoryError):
        traced_with_any_shape(lambda: model_of(no_memory), sample, export)
    assert tried == [["x", "patch_sizes"]]


def no_memory(*_: Any) -> Any:
    raise MemoryError


def test_a_trace_that_fails_is_tried_with_one_size_of_what_never_changes() -> None:
    import torch

    from hwmatrix.models.onnx_exporters import traced_with_any_shape

    class Model(torch.nn.Module):
        def forward(self, text: torch.Tensor, image: torch.Tensor, image_mask: torch.Tensor) -> torch.Tensor:
            if image.shape[-1] != 16:  # a tower that rejects other images
                raise ValueError(image.shape)
            return text.sum() + image[image_mask.bool()].sum() * 4

    def export(model: torch.nn.Module, given: dict[str, Any], axes: dict[str, Any] | None) -> Any:
        every = {name: dict.fromkeys(range(value.dim()), torch.export.Dim.DYNAMIC) for name, value in given.items()}
        found.append((set(given), axes))
        return torch.export.export(model, (), given, dynamic_shapes=every if axes is None else axes)

    found: list[tuple[set[str], Any]] = []
    sample = {"text": torch.arange(5.0), "image": torch.ones(16), "image_mask": torch.arange(16) % 2}
    program, _ = traced_with_any_shape(Model, sample, export, still=("image", "image_mask"))
    assert [given for given, _ in found] == [{"text", "image", "image_mask"}, {"text", "image"}]
    assert found[1][1] == {"text": {0: torch.export.Dim.AUTO}, "image": None}
    assert program.module()(text=torch.ones(9), image=torch.ones(16)).item() == 9 + 8 * 4
    with pytest.raises(Exception, match="image"):
        traced_with_any_shape(Model, sample, export)
