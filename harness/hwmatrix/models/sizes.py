"""The size of a model before it runs: its weights, and the peak memory of one forward pass, without allocating either.

The model is built on torch's meta device, where tensors have shapes but no storage. Its forward pass runs there while a dispatch mode adds
up the live tensors, which takes about a tenth of a second. If the forward pass depends on values, which meta tensors do not have,
a formula replaces it, and the result says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.files import write_together
from hwmatrix.errors import FactoryError, StoreError
from hwmatrix.models.build import HUB, RECIPE, build_diffusion, parameter_count, recipe_config
from hwmatrix.models.checkpoint import inspect, inspect_config
from hwmatrix.models.diffusion.inputs import diffusion_inputs
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.inputs import make_inputs
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.models.provenance import made_by
from hwmatrix.records import Dtype, Family, ModelPlan, from_json, to_json
from hwmatrix.records.strict import STRICT

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

SIZES_DIR: Final = "sizes"
FORWARD: Final = "forward"
"""``method`` of a size whose activations come from a forward pass on the meta device."""
FORMULA: Final = "formula"
"""``method`` of a size whose activations are estimated from the configuration's dimensions."""
_COMPUTED_AS: Final = {
    Dtype.A16W8: Dtype.FLOAT16,
    Dtype.A8W8: Dtype.FLOAT16,
    Dtype.INT8_DYNAMIC: Dtype.FLOAT32,
    Dtype.INT8: Dtype.FLOAT32,
    Dtype.INT4: Dtype.FLOAT32,
    Dtype.INT4_FLOAT16: Dtype.FLOAT16,
}
"""The precisions that replace the quantized ones on the meta device, which does not support those."""


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The size of a model with some settings, in bytes, independent of what executes it.

    ``stored_bytes`` are its weights in the checkpoint, in ``stored_dtype`` (float32 for a recipe). ``weight_bytes`` are its weights and
    buffers in the precision of the computation. Tied weights count once in both; ``tied_bytes`` is the size of their further uses in
    ``stored_dtype``, for graphs that store each use separately. ``dtypes`` are the bytes of weights by torch's name of the type.
    ``activation_bytes`` is the peak size of the tensors of one forward pass, without weights and inputs, with the default attention of
    transformers. ``output_bytes`` are all outputs in float32, ``largest_output_bytes`` the largest of them. ``method`` is ``forward``,
    ``formula`` (``note`` says why), or ``table`` (the packaged one).
    """

    parameters: int
    stored_bytes: int
    stored_dtype: str
    tied_bytes: int
    weight_bytes: int
    dtypes: dict[str, int]
    input_bytes: int
    activation_bytes: int
    output_bytes: int
    largest_output_bytes: int
    method: str
    note: str = ""


def model_size(plan: ModelPlan, dtype: Dtype = Dtype.FLOAT32, *, cache: Path | None = None) -> ModelSize:
    """The size of a plan's model with the plan's batch and sequence length. ``unbuildable`` is ignored: nothing is built.

    With ``cache`` (the folder that also contains bundles) the result is cached in ``<cache>/sizes`` under a checksum of everything that
    determines it; without, in this process.

    Raises:
        FactoryError: torch or transformers is not installed (``not_installed``), the model's weights have not been fetched
            (``weights_not_fetched``), it is made from its type alone (``made_from_type``), it cannot be built, or its inputs cannot be
            generated, as for ``build_model`` and ``make_inputs``.
    """
    if plan.weights == FACTORY:
        message = f"{plan.name} is made from its type alone: its size is known only once it is built, so measure it"
        raise FactoryError(message, error_type="made_from_type")
    dtype = Dtype.FLOAT32 if dtype is Dtype.DEFAULT else dtype  # the most that the runtime may choose
    key = _key(plan, dtype)
    file = cache / SIZES_DIR / f"{key}.json" if cache is not None else None
    if file is not None:
        with contextlib.suppress(OSError, StoreError):  # missing or damaged: it is computed again
            return from_json(ModelSize, file.read_bytes(), where=str(file))
    size = _cached_size(key, to_json(plan), dtype)
    if file is not None:
        _write_cache(file, size)
    return size


@functools.lru_cache(maxsize=256)
def _cached_size(key: str, plan: str, dtype: Dtype) -> ModelSize:  # noqa: ARG001 - the key covers a folder's files as well
    """The size of a plan, which is passed as JSON because it is not hashable."""
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        message = f"{error.name} is not installed here, and without it no model can be built: pip install torch transformers"
        raise FactoryError(message, error_type="not_installed") from error
    logging: Any = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # warnings matter only when the model runs
    try:
        return _measured(from_json(ModelPlan, plan, where="the plan"), dtype)
    finally:
        logging.set_verbosity(before)


def _measured(plan: ModelPlan, dtype: Dtype) -> ModelSize:
    model = _on_meta(plan, dtype)
    inputs = (diffusion_inputs if plan.family is Family.DIFFUSION else make_inputs)(model, plan)
    weights = _distinct([*model.parameters(), *model.buffers()])
    kinds: dict[str, int] = {}
    for tensor in weights:
        kind = str(tensor.dtype).removeprefix("torch.")
        kinds[kind] = kinds.get(kind, 0) + tensor.nbytes
    moved = {name: tensor.to("meta", _dtype(model) if tensor.is_floating_point() else tensor.dtype) for name, tensor in inputs.items()}
    method, note = FORWARD, ""
    try:
        peak, outputs = _forward(model, moved, known=[*weights, *moved.values()])
    except Exception as error:  # noqa: BLE001 - a model's own code may raise anything where tensors have no values
        method, note = FORMULA, f"the forward pass needs values ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        peak, outputs = _by_dimensions(model, moved)
    stored_bytes, stored_dtype = _stored(plan, model)
    named = list(model.state_dict().values())
    return ModelSize(
        parameters=sum(parameter.numel() for parameter in _distinct(list(model.parameters()))),
        stored_bytes=stored_bytes,
        stored_dtype=stored_dtype,
        tied_bytes=_bytes_as(stored_dtype, named) - _bytes_as(stored_dtype, _distinct(named)),
        weight_bytes=sum(_weight_bytes(tensor, dtype) for tensor in weights),
        dtypes=kinds,
        input_bytes=sum(tensor.nbytes for tensor in inputs.values()),
        activation_bytes=peak // 2 if dtype is Dtype.A8W8 else peak,  # computed above in float16, which has two bytes
        output_bytes=sum(outputs),
        largest_output_bytes=max(outputs, default=0),
        method=method,
        note=note,
    )


def _dtype(model: torch.nn.Module) -> torch.dtype:
    """The type that a model computes in."""
    return next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())


def _stored(plan: ModelPlan, model: torch.nn.Module) -> tuple[int, str]:
    """The bytes of a checkpoint's weights and their type: of a recipe, which is saved as float32, or of a folder's files."""
    if plan.weights != RECIPE:
        checkpoint = inspect(Path(plan.weights))
        named = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or Dtype.FLOAT32.value
        return sum(file.stat().st_size for file in checkpoint.weights), str(named)
    return _bytes_as(Dtype.FLOAT32.value, _distinct(list(model.state_dict().values()))), Dtype.FLOAT32.value


def _bytes_as(dtype: str, tensors: list[torch.Tensor]) -> int:
    """The bytes of tensors with floating-point numbers of this type; a type unknown to torch counts as float32."""
    import torch

    element = getattr(getattr(torch, dtype, None), "itemsize", torch.float32.itemsize)
    return sum(tensor.numel() * element if tensor.is_floating_point() else tensor.nbytes for tensor in tensors)


def _weight_bytes(tensor: torch.Tensor, dtype: Dtype) -> int:
    """The bytes of a weight, without scales. The quantized precisions store weights in 8 bits, those of int4 in 4."""
    if dtype not in _COMPUTED_AS or not tensor.is_floating_point():
        return tensor.nbytes
    return -(-tensor.numel() // 2) if dtype in {Dtype.INT4, Dtype.INT4_FLOAT16} else tensor.numel()


def _distinct(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each storage once: tied weights are one."""
    return list({id(tensor.untyped_storage()): tensor for tensor in tensors}.values())


def _on_meta(plan: ModelPlan, dtype: Dtype) -> torch.nn.Module:
    """The model without storage, in evaluation mode, with the default attention of transformers.

    Raises:
        FactoryError: as for :func:`model_size`.
    """
    import torch
    import transformers

    if plan.family is Family.DIFFUSION:
        with torch.device("meta"):
            return build_diffusion(plan, perturb=False).to(getattr(torch, _COMPUTED_AS.get(dtype, dtype).value))
    config = _config(plan)
    if not isinstance(getattr(transformers, plan.model_class, None), type):
        parameter_count(plan)  # raises what is wrong with the class name
    try:
        with torch.device("meta"):
            model = getattr(transformers, plan.model_class)(config)
        return model.to(getattr(torch, _COMPUTED_AS.get(dtype, dtype).value)).eval()  # type: ignore[no-any-return]
    except Exception as error:  # a model's own code may raise anything; it becomes data
        message = f"{plan.model_class} cannot be built: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise FactoryError(message, error_type="build_failed") from error


def _config(plan: ModelPlan) -> Any:
    """The configuration of a recipe, or of a checkpoint's folder, whose config.json alone is read."""
    import transformers

    if plan.weights == HUB:
        raise FactoryError(f"the weights of {plan.hub_id} have not been fetched from the hub yet", error_type="weights_not_fetched")
    if plan.weights == RECIPE:
        config = recipe_config(plan)
    else:
        folder = Path(plan.weights)
        inspect_config(folder)
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config._experts_implementation = "eager"  # noqa: SLF001 - as every target loads it; transformers offers no other way
    config._attn_implementation = None  # noqa: SLF001 - the default, for nested configurations too
    return config


def _forward(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], *, known: list[torch.Tensor]) -> tuple[int, list[int]]:
    """Run one forward pass. Returns the peak of live bytes besides ``known``, and the bytes of each output in float32."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    tallies = _LiveStorages(known)
    aten = torch.ops.aten
    questions = {aten.is_nonzero.default, aten.item.default, aten._local_scalar_dense.default}  # noqa: SLF001 - their only names

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in questions:
                answer = tallies.answer(args[0])
                if answer is not None:
                    return answer
            result = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    tallies.add(tensor, is_any=func.overloadpacket is aten.any)
            return result

    # Experts are chosen by values. With this patch, each expert gets every token, which is the upper bound.
    shapes: Any = importlib.import_module("torch.fx.experimental._config")
    watch: Any = Watch
    with shapes.patch(meta_nonzero_assume_all_nonzero=True), torch.inference_mode(), watch():
        result = model(**inputs, **call_options(model))
    outputs = flatten_outputs(result)
    return tallies.peak, [tensor.numel() * (4 if tensor.is_floating_point() else tensor.element_size()) for tensor in outputs.values()]


class _LiveStorages:
    """Counts the bytes of live storages. A finalizer reports each storage that is freed."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        self.live = self.peak = 0
        self._known = [tensor.untyped_storage() for tensor in known]  # kept alive, so that their ids are not reused
        self._sizes: dict[int, int] = {id(storage): 0 for storage in self._known}
        self._any: set[int] = set()

    def add(self, tensor: torch.Tensor, *, is_any: bool) -> None:
        """Count an operator's result, unless it is a view of a storage that is counted already."""
        storage = tensor.untyped_storage()
        if id(storage) in self._sizes:
            return
        self._sizes[id(storage)] = storage.nbytes()
        if is_any:
            self._any.add(id(storage))
        weakref.finalize(storage, self._drop, id(storage)).atexit = False
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)

    def answer(self, tensor: torch.Tensor) -> bool | None:
        """The assumed value of a boolean tensor: masks are all ones, as in the inputs, and ``any()`` finds nothing unusual.

        Models call ``mask.all()`` to leave the mask out, and ``values.isinf().any()`` to fix values. None for other types.
        """
        return None if str(tensor.dtype) != "torch.bool" else id(tensor.untyped_storage()) not in self._any

    def _drop(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)
        self._any.discard(key)


def _by_dimensions(model: Any, inputs: Mapping[str, torch.Tensor]) -> tuple[int, list[int]]:
    """Activations and output from a transformer's dimensions, in bytes.

    At its peak a layer stores, for each token, the residual stream, its normalized copy and the two sides of the feed-forward network:
    2 x hidden + 2 x intermediate elements. The logits come at the end, in the precision of the computation. The larger of both counts.
    """
    text: Any = model.config.get_text_config()
    hidden = next((width for name in ("hidden_size", "d_model") if isinstance(width := getattr(text, name, None), int)), 0)
    widths = (getattr(text, name, None) for name in ("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "n_inner"))
    inner = next((int(width) for width in widths if isinstance(width, int)), 4 * hidden)
    ids = [tensor for name, tensor in inputs.items() if name.endswith("input_ids")]
    tokens = max((tensor.numel() for tensor in ids), default=0)
    if not hidden or not tokens:
        tokens, hidden, inner = sum(tensor.numel() for tensor in inputs.values()), 1, 1  # no dimensions known: four times the input
    element = _dtype(model).itemsize
    logits = tokens * int(getattr(text, "vocab_size", 0)) if ids else 0
    return max(tokens * 2 * (hidden + inner), logits) * element, [4 * (logits or tokens * hidden)]


def _key(plan: ModelPlan, dtype: Dtype) -> str:
    """A checksum of everything that determines a size."""
    config: dict[str, Any] = plan.config
    files: dict[str, int] = {}
    if plan.weights not in {RECIPE, HUB}:
        checkpoint = inspect(Path(plan.weights))
        config, files = checkpoint.config, {file.name: file.stat().st_size for file in checkpoint.weights}
    identity = {
        "architecture": plan.architecture,
        "model_class": plan.model_class,
        "config": config,
        "files": files,
        "batch": plan.batch,
        "sequence_length": plan.sequence_length,
        "dtype": dtype.value,
        "made_by": made_by(),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _write_cache(file: Path, size: ModelSize) -> None:
    """Write it under a temporary name and rename. If the cache is not writable, the size is computed again, in a tenth of a second."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_together({file: to_json(size)}, durable=False)
