"""A traced graph that rounds, computed by PyTorch in float32: what ExecuTorch's kernels for integers are compared with."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from hwmatrix.models.outputs import flatten_outputs
from hwmatrix.targets.executorch.lowering import arrays_of, tensors_of
from hwmatrix.targets.nudge import nudge

if TYPE_CHECKING:
    from hwmatrix.targets.executorch.lowering import Exported
    from hwmatrix.targets.protocol import Arrays


class TracedInFloat:
    """:class:`hwmatrix.targets.protocol.InFloat` of a graph by PT2E: its conversions to integers and back are PyTorch's own operators."""

    def __init__(self, exported: Exported) -> None:
        self._exported = exported
        self._module: torch.nn.Module = exported.program.module()

    def outputs(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Compute the graph operator by operator."""
        args, kwargs = self._exported.called(tensors_of(inputs))
        with torch.no_grad():
            return arrays_of(flatten_outputs(self._module(*args, **kwargs)))

    def nudged(self) -> Self:
        """The same graph with other weights and scales (:func:`hwmatrix.targets.nudge.nudge`)."""
        other = copy.copy(self)
        other._module = self._exported.program.module()  # noqa: SLF001 - of this class
        random = np.random.default_rng(0)
        with torch.no_grad():
            for tensor in other._module.state_dict().values():  # noqa: SLF001 - of this class
                if tensor.dtype == torch.float32 and tensor.numel() > 1:
                    tensor.copy_(torch.from_numpy(nudge(tensor.numpy(), random)))
        return other
