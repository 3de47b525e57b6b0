"""One cell's page: loads the runtime and the ONNX exports, keeps the best-placed session, runs it, and returns the outputs."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import CellFailure, UnavailableError
from hwmatrix.models.onnx_export import OnnxExport, OnnxFailure, no_graph, read_all
from hwmatrix.targets.browser import files as browser_files
from hwmatrix.targets.browser.devtools import DevTools, Page
from hwmatrix.targets.browser.failures import failure_of
from hwmatrix.targets.browser.log import Nodes, combined, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.targets.protocol import Arrays

_PAGE: Final = Path(__file__).parent / "page"
_RUNTIME: Final = "ort.webgpu.min.mjs"
_ASK_S: Final = 20.0
"""The timeout in seconds for the adapter query. A browser with a hung GPU process never answers it."""
_NUMPY: Final = frozenset(
    {"bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)
"""The types of ONNX Runtime Web that numpy has under the same names."""
_PIECE: Final = 8 << 20
"""The number of bytes of an output fetched at once. Answers beyond 256 MiB never arrive (Chromium 156), and base64 adds a third."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """A session of the page: the placement of its nodes, its device if it has one, and the devices of each WebNN graph."""

    nodes: Nodes
    device: Mapping[str, Any] | None
    graphs: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made(Session):
    """The session of one export."""

    export: OnnxExport


class CellPage:
    """A fresh page of the browser that the service runs. Commands go to page/page.js."""

    def __init__(self, service: Mapping[str, Any] | None, *, assets: Path, threads: int) -> None:
        self._service = service
        self._assets = assets
        self._threads = threads
        self._folders: dict[str, Path] = {"page": _PAGE, "runtime": assets}
        self._page: Page | None = None
        self._exports: tuple[OnnxExport, ...] = ()
        self._failures: tuple[OnnxFailure, ...] = ()
        self._written: Callable[[OnnxExport], OnnxExport] = lambda export: export
        self._fetched: OnnxExport | None = None
        self._made: Made | None = None
        self._provider: Mapping[str, Any] = {}
        self.product = ""
        self.runtime_version = ""

    def open(self) -> None:
        """Serve the files and open the page.

        Raises:
            UnavailableError: there is no browser.
            CrashedError: the browser does not answer.
        """
        if self._service is None:
            raise UnavailableError("no browser was started for this cell", error_type="browser_not_started")
        browser_files.serve(int(self._service["files"]), self._folders, kept=frozenset({"page", "runtime"}))
        self._page = Page.open(DevTools(str(self._service["url"])).__enter__())  # closed when the cell's process ends
        self.product = str(self._service["product"])
        self._page.go(f"http://127.0.0.1:{self._service['port']}/page/page.html")

    def ask(self, command: str, **argument: Any) -> Any:
        """Call a command that a working browser answers at once, as :meth:`call` does.

        Raises:
            UnavailableError: the browser does not answer within 20 s (``browser_hung``).
        """
        try:
            return self.call(command, timeout_s=_ASK_S, **argument)
        except TimeoutError as error:
            message = f"the browser did not answer {command!r} within {_ASK_S:g} s"
            raise UnavailableError(message, error_type="browser_hung") from error

    def call(self, command: str, *, timeout_s: float | None = None, **argument: Any) -> Any:
        """Call a command of the page and return its value.

        Raises:
            CellFailure: the typed failure for the page's error.
            CrashedError: the browser or the page's process ended.
            TimeoutError: there was no answer within ``timeout_s``.
        """
        assert self._page is not None  # noqa: S101 - opened first
        answer = self._page.evaluate(f"hwmatrix.call({json.dumps(command)}, {json.dumps(argument)})", timeout_s=timeout_s)
        if "error" in answer:
            raise failure_of(answer)
        return answer.get("value")

    def load_runtime(self) -> None:
        """Load ONNX Runtime Web into the page."""
        self.runtime_version = str(self.call("runtime", url=f"/runtime/{_RUNTIME}", threads=self._threads))

    def load(
        self,
        bundle: Bundle,
        written: Callable[[OnnxExport], OnnxExport],
        *,
        only: str | None = None,
        rewritten: Callable[[tuple[OnnxExport, ...]], tuple[OnnxExport, ...]] | None = None,
    ) -> None:
        """Load the runtime and the first export, if there is one. ``only`` names an exporter, whose export is then the only one used.

        ``written`` returns an export with its graph in the cell's precision, ``rewritten`` those with replaced operators.

        Raises:
            BundleError: the exports are missing or damaged.
            UnsupportedError: the graph cannot be made in the cell's precision, or has nothing to replace.
        """
        self._written = written
        found = read_all(bundle, bundle.path.parent, only=only)
        self._exports = tuple(export for export in found if isinstance(export, OnnxExport))
        self._failures = tuple(failure for failure in found if isinstance(failure, OnnxFailure))
        if rewritten is not None:
            self._exports = rewritten(self._exports)
        self.load_runtime()
        if self._exports:
            self.fetch(written(self._exports[0]))

    def prepare(self, provider: Mapping[str, Any], name: str, inputs: Arrays) -> Made:
        """Create a session for each export until one is entirely on the provider. Keep the best-placed one and set its inputs.

        ``name`` is the provider's name in the runtime's log.

        Raises:
            UnsupportedError: no exporter can express an operator, or the runtime has no kernel for one: the message names it. Or a graph
                cannot be made in the cell's precision.
            CellFailure: no exporter produced a graph, or the runtime accepts none. The error is that of the first export.
        """
        if not self._exports:
            raise no_graph(self._failures)
        made: list[Made] = []
        failures: list[CellFailure] = []
        for each in self._exports:
            export = self._written(each)
            if self._fetched != export:
                self.fetch(export)
            try:
                made.append(self._create(export, provider))
            except CellFailure as failure:
                failures.append(failure)
                if failure.status == "crash":  # the sessions created so far are lost with the device
                    break
                continue
            if made[-1].nodes.share(name) == 1.0:
                break
        if not made or (failures and failures[-1].status == "crash"):
            for other in failures[1:]:
                failures[0].add_note(f"for another export, the runtime reported: {other}")
            raise failures[0] if not made else failures[-1]
        best = max(made, key=lambda one: one.nodes.share(name))
        self._choose(best.export, inputs)
        self._made, self._provider = best, provider
        return best

    def feed(self, inputs: Arrays) -> None:
        """Replace the inputs of the kept session."""
        assert self._made is not None  # noqa: S101 - prepared first
        names = self._made.export.inputs
        self.call("feed", inputs={name: encoded(inputs[name]) for name in names})

    def run(self) -> float:
        """Run one inference and return its milliseconds by the page's clock, including reading back the outputs."""
        return float(self.call("run"))

    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the outputs of the last run by the reference's names."""
        assert self._made is not None  # noqa: S101 - prepared first
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for name, output in zip(self._made.export.outputs, self.call("outputs"), strict=True):
            if name is not None:
                data = np.frombuffer(base64.b64decode(output["data"]), dtype=output["dtype"]).reshape(output["shape"])
                arrays[name] = _handed_out(data)
        return arrays

    def values(self, graph: OnnxExport, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Run the fetched graph once on the provider of the prepared session, and return all its outputs by its own names.

        The new session replaces the prepared one. Outputs of a type that numpy lacks are left out.

        Raises:
            CellFailure: the runtime does not accept the graph, or the device is lost.
        """
        self._create(graph, self._provider)
        self._choose(graph, inputs)
        self.run()
        return {kind["name"]: self._value(kind) for kind in self.call("kinds") if kind["dtype"] in _NUMPY}

    def _value(self, kind: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        size = int(kind["bytes"])
        pieces = [self.call("piece", name=kind["name"], begin=begin, end=begin + _PIECE) for begin in range(0, size, _PIECE)]
        data = np.frombuffer(b"".join(map(base64.b64decode, pieces)), dtype=kind["dtype"]).reshape(kind["shape"])
        return _handed_out(data)

    def _choose(self, export: OnnxExport, inputs: Arrays) -> None:
        self.call("choose", name=export.exporter, inputs={name: encoded(inputs[name]) for name in export.inputs})

    def fetch(self, export: OnnxExport) -> None:
        """Load an export into the page. Its files are not read again afterwards."""
        self._fetch(export.exporter, export.path)
        self._fetched = export

    def create(self, name: str, path: Path, provider: Mapping[str, Any], *, kept: Mapping[str, str]) -> Session:
        """Create a session of a graph under a name, beside those that exist. ``kept`` has the place of each output that stays there.

        Raises:
            CellFailure: the runtime does not accept the graph, or the device is lost.
        """
        self._fetch(name, path)
        return _session(self.call("create", name=name, provider=dict(provider), kept=dict(kept)))

    def _fetch(self, name: str, path: Path) -> None:
        """Load a graph and its external data files into the page, from a folder that the page knows by this name."""
        self._folders[name] = path.parent
        beside = [file.name for file in sorted(path.parent.iterdir()) if file.name.startswith(f"{path.name}.")]
        self.call("model", file=f"/{name}/{path.name}", beside=[{"path": each, "url": f"/{name}/{each}"} for each in beside])

    def _create(self, export: OnnxExport, provider: Mapping[str, Any]) -> Made:
        session = _session(self.call("create", name=export.exporter, provider=dict(provider)))
        return Made(export=export, nodes=session.nodes, device=session.device, graphs=session.graphs)


def together(sessions: Sequence[Session]) -> Session:
    """Several sessions of one page as one: all their nodes and graphs, and their device."""
    return Session(
        nodes=combined(session.nodes for session in sessions),
        device=next((session.device for session in sessions if session.device is not None), None),
        graphs=tuple(graph for session in sessions for graph in session.graphs),
    )


def _session(answer: Mapping[str, Any]) -> Session:
    graphs = tuple(tuple(graph) for graph in answer["graphs"])
    return Session(nodes=parse(answer["log"]), device=answer["device"], graphs=graphs)


def _handed_out(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return data.astype(np.float32) if np.issubdtype(data.dtype, np.floating) else data


def encoded(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Encode an array for the page. Type names are the same in numpy and in ONNX Runtime Web."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": data}
