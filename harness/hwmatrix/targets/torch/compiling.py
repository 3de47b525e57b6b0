"""A PyTorch model compiled by ``torch.compile``, and what the compiler did: graphs, graph breaks, compilations, time."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.text import cut
from hwmatrix.errors import CellFailure
from hwmatrix.targets.protocol import Compilation

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_MOST_REASONS: Final = 20
_REASON_LIMIT: Final = 500
_LIMIT_HIT: Final = re.compile(
    r"torch\._dynamo hit config\.(?:accumulated_)?recompile_limit \((?P<limit>\d+)\)"
    r"(?:\s+function: '(?P<name>[^']*)' \((?P<path>[^\n]*):(?P<line>\d+)\))?"
    r"(?:\s+last reason: (?:\d+/\d+: )?(?P<why>[^\n]*))?"
)
"""The warning of torch._dynamo (2.13) about code that it will not compile again."""
_ADDRESS: Final = re.compile(r", \d{9,}(?=\))")
"""The address of a class or an object, as in ``___check_type_id(kind, 93934106003008)``: another one in every process."""


class Compiled:
    """Calls a model that TorchInductor compiles, with PyTorch's defaults: for the shapes of the first call.

    A call that compiles again, because something changed that the compiled code depends on, counts as a recompilation. After
    ``torch._dynamo.config.recompile_limit`` of them (8), PyTorch would run the model uncompiled: such calls are refused. A function that
    the first call alone compiles that often, for one module after the other, runs uncompiled from then on, as PyTorch does by default.
    It counts as a graph break.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        import torch
        import torch._dynamo  # seconds of imports, which targets that compile nothing do not need

        torch._dynamo.reset()  # noqa: SLF001 - documented: https://docs.pytorch.org/docs/stable/torch.compiler_faq.html
        self._given_up = _GivenUp()
        logging.getLogger("torch._dynamo").addHandler(self._given_up)
        self._model = model
        self._call: Callable[..., Any] = torch.compile(model)
        self._first: Compilation | None = None
        self._graphs_before = _graphs()

    def __call__(self, **inputs: Any) -> Any:
        """Run one forward pass. The first one compiles.

        Raises:
            CellFailure: every run compiles again (``recompile_limit``).
        """
        before = len(self._given_up.functions)
        outputs = self._call(**inputs)
        if self._first is not None and len(self._given_up.functions) > before:
            graphs, why = _graphs() - self._graphs_before, list(self._given_up.functions.values())[-1]
            message = f"each run compiled the model again, until torch.compile gave up after {graphs} graphs: {why}"
            raise CellFailure(message, error_type="recompile_limit")
        return outputs

    def compile(self, run: Callable[[], object]) -> None:
        """Compile, by the first call of ``run``, which must call this model."""
        from torch._dynamo import output_graph

        breaks: list[Any] = vars(output_graph)["graph_break_reasons"]
        breaks.clear()
        begin = time.perf_counter()
        run()
        compile_ms = (time.perf_counter() - begin) * 1000
        reasons = [*map(_described, breaks), *self._given_up.functions.values()]
        self._first = Compilation(
            graphs=_graphs() - self._graphs_before,
            graph_breaks=len(reasons),
            break_reasons=tuple(dict.fromkeys(reasons))[:_MOST_REASONS],
            recompilations=0,
            compile_ms=compile_ms,
        )

    def compilation(self, run: Callable[[], object] | None) -> Compilation:
        """Return what was compiled so far. With ``run``, also compile once more, from the cache that the first compilation left."""
        import torch
        import torch._dynamo

        first = self._first
        assert first is not None  # noqa: S101 - the order of the protocol
        recompilations, cached_ms = _graphs() - self._graphs_before - first.graphs, None
        if run is not None:
            torch._dynamo.reset()  # noqa: SLF001 - as above
            self._call = torch.compile(self._model)
            begin = time.perf_counter()
            run()
            cached_ms = (time.perf_counter() - begin) * 1000
        return first.with_later(recompilations=recompilations, cached_compile_ms=cached_ms)


class _GivenUp(logging.Handler):
    """The functions that torch._dynamo will not compile again, by their places, with why their code did not fit the last time."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.functions: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning about the limit. Each run repeats it."""
        if found := _LIMIT_HIT.search(record.getMessage()):
            place = f"{_short(found['path'])}:{found['line']} in {found['name']}" if found["path"] else "unknown place"
            why = _ADDRESS.sub("", " ".join((found["why"] or "no reason given").split()))
            self.functions.setdefault(place, cut(f"{place}: not compiled again after {found['limit']} times: {why}", _REASON_LIMIT))


def _graphs() -> int:
    """How many graphs this process has compiled."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _described(reason: Any) -> str:
    """A graph break: where in the model's code, and the first line of the reason."""
    first = next((line.strip() for line in str(reason.reason).splitlines() if line.strip()), "no reason given")
    frames = list(reason.user_stack)
    place = f"{_short(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}: " if frames else ""
    return cut(place + first, _REASON_LIMIT)


def _short(path: str) -> str:
    """The path of a module below site-packages; else its last two parts."""
    below = path.rpartition("site-packages/")[2]
    return below if below != path else "/".join(path.split("/")[-2:])
