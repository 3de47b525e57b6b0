"""Creates QNN sessions, and reads intermediate values of a graph from a session in a separate process.

QNN keeps state between the sessions of a process, and may kill it. This module imports little, so that the process starts quickly.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import TraceError
from hwmatrix.hardware import qnn as hardware
from hwmatrix.targets.onnx import trace as onnx_trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Array = np.ndarray[Any, np.dtype[Any]]

_ASKED: Final = "asked.json"
_FEED: Final = "feed.npz"
_VALUES: Final = "values.npz"
_LOG_ERRORS: Final = 3
"""ONNX Runtime's log severity for errors and worse."""
_TOLD: Final = 2000
"""The number of characters kept from the end of the process's output."""


def session(model: str | bytes, devices: Sequence[Any], *, soc_model: int, threads: int) -> Any:
    """Create an ONNX Runtime session that never falls back as a whole, and that records which nodes QNN accepted."""
    import onnxruntime
    import onnxruntime_qnn

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    htp = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": str(soc_model),
        "offload_graph_io_quantization": "0",  # otherwise the first and last nodes of a quantized graph go to the CPU
    }
    options.add_provider_for_devices(list(devices), htp)
    return onnxruntime.InferenceSession(model, options, enable_fallback=0)


def read_apart(graph: Path, feed: Mapping[str, Array], names: Sequence[str], *, soc_model: int, threads: int) -> dict[str, Array]:
    """Return these outputs of a graph on QNN by name, as :func:`onnx_trace.read` does. Files go to the graph's folder.

    Raises:
        TraceError: QNN rejects the graph, or the process died. The message has the end of its output.
    """
    folder = graph.parent
    asked = {"graph": graph.name, "names": list(names), "soc_model": soc_model, "threads": threads}
    (folder / _ASKED).write_text(json.dumps(asked), encoding="utf-8")
    np.savez(folder / _FEED, **_for_archive(feed))
    command = [sys.executable, "-m", __name__, str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        how = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        message = f"QNN returned no values for this graph ({how}): {done.stderr.strip()[-_TOLD:]}"
        raise TraceError(message)
    return _from_archive(folder / _VALUES)


def main(folder: Path) -> None:
    """Entry point of the separate process."""
    import onnxruntime

    asked = read_json((folder / _ASKED).read_bytes())
    onnxruntime.set_default_logger_severity(_LOG_ERRORS)
    made = session(str(folder / asked["graph"]), hardware.provider_devices(), soc_model=asked["soc_model"], threads=asked["threads"])
    np.savez(folder / _VALUES, **_for_archive(onnx_trace.read(made, _from_archive(folder / _FEED), asked["names"])))


def _for_archive(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Number the arrays for an archive: as member or argument names, values' names could contain slashes and colons, or clash."""
    values = {f"value_{number}": array for number, array in enumerate(arrays.values())}
    return {"names": np.array(list(arrays), dtype=np.str_), **values}


def _from_archive(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as archive:
        return {str(name): archive[f"value_{number}"] for number, name in enumerate(archive["names"])}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
