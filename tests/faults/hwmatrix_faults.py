"""Models that misbehave on demand, for tests only.

``python -m hwmatrix_faults <arguments>`` registers one more architecture with transformers and is ``hwmatrix.runner`` from
there on. The ``fault`` of a model's configuration says what goes wrong and ``place`` where: while the model is constructed
(stage load, on every target) or in its forward pass (stage prepare on targets that export the model, else run).

Nothing goes wrong unless ``HWMATRIX_FAULTS=armed`` is in the environment, so that bundles can be built of all of them.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
from transformers.modeling_outputs import BaseModelOutputWithPooling

if TYPE_CHECKING:
    from collections.abc import Callable

ARCHITECTURE: Final = "hwmatrix-fault"
MODEL_CLASS: Final = "HwmatrixFaultModel"
HUNGER_MB: Final = 256
"""MiB that a hungry model takes for each sample of its batch."""
VARIABLE: Final = "HWMATRIX_FAULTS"
ARMED: Final = "armed"
STRAY: Final = "hwmatrix-fault-stray"
"""The name under which a process that outlives its cell appears in the table of processes."""


def is_armed() -> bool:
    """Whether models misbehave in this process."""
    return os.environ.get(VARIABLE) == ARMED


def _segfault() -> None:
    ctypes.string_at(0)


def _allocate() -> None:
    kept = []
    while True:  # not tensors: exporters and from_pretrained construct those without memory
        kept.append(b"x" * (64 << 20))


def _loop() -> None:
    while True:
        pass


def _print() -> None:
    """64 MiB, then the last words, then the end."""
    line = "x" * 1023
    for _ in range(64 * 1024):
        print(line)  # noqa: T201 - it is the fault
    sys.stdout.flush()
    os.write(2, b"the last words\n")
    os._exit(4)


def _stray() -> None:
    """A process in a session of its own, which holds on to all that it has inherited."""
    command = [sys.executable, "-c", f"import time  # {STRAY}\ntime.sleep(60)"]
    subprocess.Popen(command, start_new_session=True, close_fds=False)


def _kill_parent() -> None:
    """The process that has forked this one: with several cells at once a worker, else the runner itself."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def _reach_out() -> None:
    """Write where nothing of this model belongs, open the network, and reach for the parent; then tell what came of each."""
    told = []
    harness = os.path.dirname(importlib.import_module("hwmatrix").__file__ or "")  # noqa: PTH120
    for place in ("/", harness, *(f"/hwmatrix/{name}" for name in ("plan", "cache", "out"))):
        try:
            with open(os.path.join(place, "hwmatrix-fault"), "w", encoding="ascii"):  # noqa: PTH118, PTH123
                told.append(f"{place} was written")
        except OSError as error:
            told.append(f"{place}: {error.strerror}")
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=3).close()
        told.append("the network was reached")
    except OSError as error:
        told.append(f"network: {error.strerror or error}")
    try:
        os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR))
        told.append("the parent's memory was opened")
    except OSError as error:
        told.append(f"memory: {error.strerror}")
    try:
        os.kill(os.getppid(), 0)  # a signal that only asks
        told.append("the parent can be signalled")
    except OSError as error:
        told.append(f"signal: {error.strerror}")
    raise RuntimeError("; ".join(told))


def _raise() -> None:
    error = RuntimeError("this model raises on purpose")
    raise error from error  # as code does that raises what it has caught, from itself


ACTIONS: Final[dict[str, Callable[[], None]]] = {
    "segfault": _segfault,
    "exit0": lambda: os._exit(0),
    "exit3": lambda: os._exit(3),
    "allocate": _allocate,
    "loop": _loop,
    "sleep": lambda: time.sleep(600),
    "print": _print,
    "stray": _stray,
    "kill_parent": _kill_parent,
    "reach_out": _reach_out,
    "raise": _raise,
}
"""Faults by what they do. The others, by what comes out: nan, wrong, missing; by what they are given: hungry, no_half.

And one that is none: lgamma.
"""


class HwmatrixFaultConfig(transformers.PreTrainedConfig):  # type: ignore[no-untyped-call]
    """``fault`` is a key of ACTIONS, or nan, wrong, missing, hungry, no_half, lgamma or none; ``place`` is init or forward."""

    model_type = ARCHITECTURE

    fault: str = "none"
    place: str = "forward"
    vocab_size: int = 64
    hidden_size: int = 16
    max_position_embeddings: int = 64


class HwmatrixFaultModel(transformers.PreTrainedModel):  # type: ignore[no-untyped-call]
    """An embedding and a linear layer, and the fault of its configuration."""

    config_class = HwmatrixFaultConfig

    def __init__(self, config: HwmatrixFaultConfig) -> None:
        super().__init__(config)
        self._acted = False
        self.embedding = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.linear = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]
        self._act("init")

    def forward(self, input_ids: torch.Tensor, **_options: Any) -> BaseModelOutputWithPooling:
        """(batch, tokens) to hidden states (batch, tokens, width) and their mean (batch, width)."""
        self._act("forward")
        if is_armed() and self.config.fault == "hungry":
            kept = [b"x" * (HUNGER_MB << 20) for _ in range(len(input_ids))]
            del kept
        if is_armed() and self.config.fault == "no_half" and self.linear.weight.dtype is torch.float16:
            raise RuntimeError("this model has no kernel for half precision")
        hidden = self.linear(self.embedding(input_ids))
        if self.config.fault == "lgamma":  # an operator of PyTorch that few other runtimes have
            hidden = torch.lgamma(hidden.abs() + 1.0)
        if is_armed() and self.config.fault == "nan":
            hidden = hidden * float("nan")
        if is_armed() and self.config.fault == "wrong":
            hidden = hidden + 0.5
        pooled = None if is_armed() and self.config.fault == "missing" else hidden.mean(dim=1)
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)

    def _act(self, place: str) -> None:
        if is_armed() and not self._acted and self.config.place == place and self.config.fault in ACTIONS:
            self._acted = True
            ACTIONS[self.config.fault]()


def register() -> None:
    """Make transformers know the architecture, so that the factory, bundles and targets find it as they find any other."""
    _ = transformers.BertForMaskedLM  # the first model that is asked for makes transformers import itself anew
    module = importlib.import_module("transformers")
    module.AutoConfig.register(ARCHITECTURE, HwmatrixFaultConfig)
    setattr(module, MODEL_CLASS, HwmatrixFaultModel)


if __name__ == "__main__":
    import hwmatrix_faults

    from hwmatrix.runner.__main__ import main

    hwmatrix_faults.register()
    sys.exit(main(sys.argv[1:]))
