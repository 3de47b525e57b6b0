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
_LAST_REASON: Final = re.compile(r"last reason: (?:\d+/\d+: )?(.*)")


class Compiled:
    """Calls a model that TorchInductor compiles, with PyTorch's defaults: for the shapes of the first call.

    A call that compiles again, because something changed that the compiled code depends on, counts as a recompilation; after
    ``torch._dynamo.config.recompile_limit`` of them (8), calls raise ``FailOnRecompileLimitHit`` instead of silently running uncompiled.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        import torch
        import torch._dynamo  # seconds of imports, which targets that compile nothing do not need

        torch._dynamo.reset()  # noqa: SLF001 - documented: https://docs.pytorch.org/docs/stable/torch.compiler_faq.html
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # noqa: SLF001 - documented there, too
        self._limit_hit = torch._dynamo.exc.FailOnRecompileLimitHit  # noqa: SLF001 - as above
        self._told = _Told()
        logging.getLogger("torch._dynamo").addHandler(self._told)
        self._model = model
        self._call: Callable[..., Any] = torch.compile(model)
        self._first: Compilation | None = None
        self._graphs_before = _graphs()

    def __call__(self, **inputs: Any) -> Any:
        """Run one forward pass. The first one compiles.

        Raises:
            CellFailure: every run compiles again, or a single run compiles the same code too often (``recompile_limit``).
        """
        try:
            return self._call(**inputs)
        except self._limit_hit as error:
            why = self._told.last_reason() or str(error)
            what = "the first run compiled the same code" if self._first is None else "each run compiled the model"
            message = f"{what} again, until torch.compile gave up after {_graphs() - self._graphs_before} graphs: {why}"
            raise CellFailure(message, error_type="recompile_limit") from error

    def compile(self, run: Callable[[], object]) -> None:
        """Compile, by the first call of ``run``, which must call this model."""
        from torch._dynamo import output_graph

        breaks: list[Any] = vars(output_graph)["graph_break_reasons"]
        breaks.clear()
        begin = time.perf_counter()
        run()
        compile_ms = (time.perf_counter() - begin) * 1000
        reasons = [_described(reason) for reason in breaks]
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


class _Told(logging.Handler):
    """Keeps the last warning of a logger."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self._last = record.getMessage()

    def last_reason(self) -> str | None:
        """Return why the compiled code could not be used, in the words of torch._dynamo (2.13)."""
        found = _LAST_REASON.search(self._last or "")
        return cut(" ".join(found[1].split()), _REASON_LIMIT) if found else None


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
