"""The two ONNX exporters. Each turns a bundle into a graph file and the fields of its manifest."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import chain_of
from hwmatrix.faults.catalogue import classify
from hwmatrix.models import onnx_extents, onnx_graph
from hwmatrix.records import Dtype, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import torch

    from hwmatrix.models.bundle import Bundle

TRANSFORMERS: Final = "transformers"
TORCH: Final = "torch"
DATA_DEPENDENT: Final = "data-dependent"
"""torch.export's term (2.13) for Python code that reads the value of a tensor."""
_SHAPES: Final = re.compile(
    "data-dependent|dynamic|static|symbolic|Sym(Int|Node|Bool)|speciali[sz]|constraint|shape|size|rank|dimension|ranges", re.IGNORECASE
)
"""The words of torch.export (2.13) and OpenVINO (2026.4) for what they must not know about shapes."""
_EXPERTS: Final = "batched_mm"
_INLINE_BYTES: Final = 3 * 2**29
"""Protobuf messages are limited to 2 GiB (protobuf.dev, proto limits); half a GiB is left for the graph. Browsers prefer one file."""


def _with_transformers(bundle: Bundle, file: Path) -> dict[str, Any]:
    """The exporter of transformers, which patches torch's exporter and names outputs as the reference does."""
    model, inputs = loaded(bundle), bundle.load_inputs()
    try:
        program, prepared = _traced(model, inputs, fixed=())
    except Exception as error:
        fixed = onnx_extents.extents(inputs)
        if not fixed or DATA_DEPENDENT not in told_of(error):
            raise
    else:
        return _saved(bundle, program, file, prepared=prepared)
    # Outside the handler, so that the first attempt's error does not become the cause of the second's.
    model, inputs = loaded(bundle), bundle.load_inputs()
    program, prepared = _traced(model, inputs, fixed=fixed)
    return _saved(bundle, program, file, prepared=prepared, extents=fixed)


def _traced(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, fixed: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """A graph (an ``onnx_ir.Model``) with the ``fixed`` inputs as constants, and what the exporter computed from the inputs in advance."""
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter
    from transformers.exporters.utils import get_leaf_tensors

    exporter: Any = OnnxExporter
    sample: dict[str, Any] = dict(inputs)  # the exporter adds what it computes in advance
    with with_extents(model, sample, fixed), _no_warnings():
        program = exporter().export(model, sample, OnnxConfig()).program
    return program, {name: tensor.numpy() for name, tensor in get_leaf_tensors(sample).items() if name not in inputs}


def traced_with_any_shape(
    load: Callable[[], torch.nn.Module],
    sample: Mapping[str, Any],
    export: Callable[[torch.nn.Module, dict[str, Any], dict[str, Any] | None], Any],
    *,
    still: Collection[str] = (),
) -> tuple[Any, dict[str, torch.Tensor]]:
    """The graph that ``export`` makes of a pass with these arguments, every axis dynamic, and what was computed in advance.

    If that fails because of shapes, it is tried once more. The axes of the ``still`` arguments, and of all that is computed in advance, are
    then fixed. Those that describe sizes, such as the grid of an image's patches, and whole numbers among the ``still`` ones become
    constants of the graph, as in :func:`onnx_extents.held`. The size of an image is then fixed, the length of a text is not.

    ``export`` gets the model, the arguments, to which it adds what it computes in advance, and their dynamic axes as torch.export takes
    them; None: all. Whatever its second attempt raises is passed on, with a note of the first attempt's error.
    """
    from transformers.exporters.utils import get_leaf_tensors

    known = get_leaf_tensors(dict(sample)).keys()

    def made(*, fixed: Sequence[str] = (), some: bool = False) -> tuple[Any, dict[str, torch.Tensor]]:
        model, given = load(), dict(sample)
        with with_extents(model, given, fixed), _no_warnings():
            program = export(model, given, dynamic_axes(model, given, sample.keys() - still) if some else None)
        return program, {name: tensor for name, tensor in get_leaf_tensors(given).items() if name not in known}

    tensors = {name: value for name, value in sample.items() if hasattr(value, "is_floating_point")}
    sizes = onnx_extents.extents(tensors)
    fixed = [name for name, value in tensors.items() if name in sizes or (name in still and not value.is_floating_point())]
    try:
        return made()
    except Exception as error:
        if (not fixed and not sample.keys() & still) or not _about_shapes(error):
            raise
        first = told_of(error)
    # Outside the handler, so that the first attempt's error does not become the cause of the second's.
    try:
        return made(fixed=fixed, some=True)
    except Exception as second:
        second.add_note(f"\nThe first attempt, with every axis dynamic, had failed: {first}")
        raise


def _about_shapes(error: Exception) -> bool:
    """Whether an exporter says that shapes are the cause. If memory ran out they are not, although the message may have the array's."""
    return classify(error).status is not Status.OOM and _SHAPES.search(told_of(error)) is not None


def dynamic_axes(model: torch.nn.Module, sample: Mapping[str, Any], dynamic: Collection[str]) -> dict[str, Any]:
    """The axes of all arguments of the exporter for torch.export: those of the ``dynamic`` ones are free, the others have one size."""
    from transformers.exporters.exporter_dynamo import get_auto_dynamic_shapes
    from transformers.exporters.utils import prepare_for_export

    _, prepared, _ = prepare_for_export(model, dict(sample))
    axes = {name: get_auto_dynamic_shapes(value) for name, value in prepared.items()}
    return {name: each if name in dynamic else _no_axes(each) for name, each in axes.items()}


def _no_axes(axes: Any) -> Any:
    """The same structure of arguments with no dynamic axis."""
    return type(axes)(map(_no_axes, axes)) if isinstance(axes, (list, tuple)) else None


@contextlib.contextmanager
def with_extents(model: torch.nn.Module, sample: dict[str, Any], fixed: Sequence[str]) -> Iterator[None]:
    """Take the ``fixed`` inputs out of a sample, and hold them constant in the model; what exporters compute from them is added first."""
    import torch
    from transformers.exporters.utils import precompute_export_inputs

    if not fixed:
        yield
        return
    with torch.no_grad():
        precompute_export_inputs(model, sample)
    with onnx_extents.held(model, {name: sample.pop(name) for name in fixed}):
        yield


def with_any_shape(model: torch.nn.Module, sample: dict[str, Any], axes: dict[str, Any] | None) -> Any:
    """The ``onnx_ir.Model`` of a pass with these arguments, as :func:`traced_with_any_shape` asks for it."""
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    exporter: Any = OnnxExporter
    return exporter().export(model, sample, OnnxConfig(dynamic=True, dynamic_shapes=axes)).program


def _with_torch(bundle: Bundle, file: Path) -> dict[str, Any]:
    """``torch.onnx.export`` via ``torch.export`` with static shapes, of a module that returns the reference's outputs in order."""
    import torch

    from hwmatrix.models.outputs import call_options, flatten_outputs

    model, inputs = loaded(bundle), bundle.load_inputs()
    options = call_options(model)

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(flatten_outputs(self.inner(**dict(zip(inputs, tensors, strict=True)), **options)).values())

    with _no_warnings(), torch.no_grad():
        names = list(flatten_outputs(model(**inputs, **options)))
        program = torch.onnx.export(Flat().eval(), tuple(inputs.values()), dynamo=True, input_names=list(inputs), verbose=False)
    assert program is not None  # noqa: S101 - dynamo=True always returns a program
    onnx_graph.name_outputs(program.model.graph, onnx_graph.output_names(names, inputs))
    return _saved(bundle, program.model, file, prepared={})


EXPORTERS: Final[dict[str, Callable[[Bundle, Path], dict[str, Any]]]] = {TRANSFORMERS: _with_transformers, TORCH: _with_torch}


def loaded(bundle: Bundle, *, attention: str | None = "eager", cache: bool = False) -> torch.nn.Module:
    """The model with eager attention, as in the reference, and experts as one batched product.

    ``attention`` is another implementation, or None for the default of transformers.
    """
    import torch
    import transformers

    from hwmatrix.models.build import load_model

    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    model: Any = load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32, attention=attention, cache=cache)
    with_batched_experts(model)
    return model  # type: ignore[no-any-return]


def with_batched_experts(model: torch.nn.Module) -> None:
    """Compute experts as one batched product.

    The reference loops over the experts that were hit, and a graph cannot express a loop whose length depends on the data.
    """
    import transformers

    for part in model.modules():  # a composite model does not say what its parts support
        if isinstance(part, transformers.PreTrainedModel) and part._can_set_experts_implementation():  # noqa: SLF001 - as in the exporter
            part.set_experts_implementation(_EXPERTS)


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Ignore warnings: they are about the exporters' own calls of torch. A failed export raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _saved(
    bundle: Bundle, program: Any, file: Path, *, prepared: Mapping[str, np.ndarray[Any, Any]], extents: Sequence[str] = ()
) -> dict[str, Any]:
    """Write the graph (an ``onnx_ir.Model``) and return its manifest fields. ``extents`` are inputs whose values are constants in it.

    Raises:
        ValueError: the graph has an input that the bundle does not have, or lacks an output of the reference.
    """
    inputs = [described["name"] for described in bundle.manifest["inputs"]]
    expected = [described["name"] for described in bundle.manifest["expected"]]
    names = onnx_graph.fit(program, inputs=inputs, expected=expected, prepared=prepared)
    save(program, file)
    fixed = [*extents, *names.fixed]
    return {"inputs": names.inputs, "outputs": names.outputs, "fixed": fixed, "opset": program.opset_imports[""]}


def save(program: Any, file: Path) -> None:
    """Write a graph (an ``onnx_ir.Model``), with its weights in a file of their own if they don't fit into one."""
    import onnx_ir

    size = sum(value.const_value.nbytes for value in program.graph.initializers.values() if value.const_value is not None)
    onnx_ir.save(program, file, external_data=f"{file.name}.data" if size > _INLINE_BYTES else None)


def told_of(error: Exception) -> str:
    """An exporter's error with its causes, the deepest last: that is where torch gives the reason."""
    return "; caused by ".join(f"{type(cause).__name__}: {' '.join(str(cause).split())[:1000]}" for cause in chain_of(error))
