"""One runtime on all hardware that it can use here: a small matrix product, compared with float64.

Runs as a program in its own process (``python -m hwmatrix.reporter.stack_probe torch``), because a driver may crash or hang it. Each
device is announced before it is used, so that the parent knows which one it was.
"""

from __future__ import annotations

import importlib.resources
import json
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MARK: Final = "hwmatrix-stack: "
"""The start of the probe's own lines: runtimes print lines of their own."""
RUNTIMES: Final = {"torch": "torch", "openvino": "openvino", "onnxruntime": "onnxruntime", "qnn": "onnxruntime_qnn"}
"""The runtimes, each with the module that it needs."""
ROWS, COLUMNS, INNER = 16, 32, 64
"""The product of ROWS x INNER with INNER x COLUMNS; the ONNX model beside this file has the same sizes."""
_EXACT: Final = 1e-4
"""Float32 sums of 64 products differ by less than 1e-6 from float64; TF32, which some GPUs use instead, by less than 1e-3."""
_TF32: Final = 5e-3
_HALF: Final = 2e-2
"""For runtimes that may choose bfloat16 (8 bits per operand) or float16 themselves, as OpenVINO does on processors that support it."""
_SOC_MODEL: Final = "57"
"""The emulated chip, as in the target qnn (docs/targets/qnn.md)."""
_PROVIDERS: Final = {
    "CPUExecutionProvider": "onnxruntime",
    "CUDAExecutionProvider": "cuda",
    "ROCMExecutionProvider": "rocm",
    "MIGraphXExecutionProvider": "rocm",
    "CoreMLExecutionProvider": "mps",
    "OpenVINOExecutionProvider": "openvino",
    "WebGpuExecutionProvider": "webgpu",
}
"""Execution providers that compute on this machine, and the hardware that each stands for."""

Work = tuple[str, str, float, "Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], Any]"]
"""Hardware, device, the largest allowed relative error, and the function that multiplies."""


def main(argv: Sequence[str]) -> None:
    """Try every device of the runtime ``argv[0]`` except those in the rest of ``argv``."""
    runtime, skipped = argv[0], frozenset(argv[1:])
    left, right = inputs()
    for hardware, device, tolerance, multiply in _WORK[runtime]():
        if device in skipped:
            continue
        _emit({"begin": device, "hardware": hardware})
        _emit({"end": device, "hardware": hardware, **_outcome(left, right, tolerance, multiply)})
    _emit({"finished": runtime})


def inputs() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The two factors, the same on every device."""
    generator = np.random.default_rng(0)
    left = generator.standard_normal((ROWS, INNER)).astype(np.float32)
    return left, generator.standard_normal((INNER, COLUMNS)).astype(np.float32)


def _outcome(left: Any, right: Any, tolerance: float, multiply: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """The outcome of one product: its relative L2 error, or the exception."""
    begin = time.perf_counter()
    try:
        found = np.asarray(multiply(left, right), dtype=np.float64)
    except Exception as error:  # noqa: BLE001 - whatever a runtime raises is the result
        kind = type(error)
        failure = {"message": str(error), "exception": f"{kind.__module__}.{kind.__qualname__}", "traceback": traceback.format_exc()}
        return {"status": "error", "relative_error": None, "wall_ms": _since(begin), **failure}
    wanted = left.astype(np.float64) @ right.astype(np.float64)
    finite = found.shape == wanted.shape and bool(np.isfinite(found).all())
    distance = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) if finite else None
    passed = distance is not None and distance <= tolerance
    message = (
        None
        if passed
        else f"relative L2 error {distance:.3g} of a product exceeds {tolerance:g}"
        if finite
        else "NaN or infinity in a product"
    )
    return {"status": "pass" if passed else "mismatch", "relative_error": distance, "wall_ms": _since(begin), "message": message}


def _torch() -> Iterator[Work]:
    import torch

    def on(device: str) -> Callable[[Any, Any], Any]:
        def multiply(left: Any, right: Any) -> Any:
            return (torch.from_numpy(left).to(device) @ torch.from_numpy(right).to(device)).cpu().numpy()

        return multiply

    yield "cpu", "cpu", _EXACT, on("cpu")
    kind = "rocm" if torch.version.hip else "cuda"
    for index in range(torch.cuda.device_count()):
        yield kind, f"cuda:{index}", _TF32, on(f"cuda:{index}")
    if torch.backends.mps.is_available():
        yield "mps", "mps", _TF32, on("mps")


def _openvino() -> Iterator[Work]:
    import openvino

    core = openvino.Core()
    for device in core.available_devices:

        def multiply(left: Any, right: Any, device: str = device) -> Any:
            compiled = core.compile_model(core.read_model(_onnx()), device)
            return compiled([left, right])[0]

        yield "openvino", device, _HALF, multiply


def _onnxruntime() -> Iterator[Work]:
    import onnxruntime

    for provider in onnxruntime.get_available_providers():
        if provider not in _PROVIDERS:
            continue

        def multiply(left: Any, right: Any, provider: str = provider) -> Any:
            session = onnxruntime.InferenceSession(_onnx(), providers=[provider], enable_fallback=0)
            if provider not in session.get_providers():
                raise RuntimeError(f"Failed to create {provider}. The session has {', '.join(session.get_providers())}")
            return session.run(None, {"left": left, "right": right})[0]

        yield _PROVIDERS[provider], provider, _EXACT if provider == "CPUExecutionProvider" else _HALF, multiply


def _qnn() -> Iterator[Work]:
    from hwmatrix.hardware import qnn

    def multiply(left: Any, right: Any) -> Any:
        import onnxruntime
        import onnxruntime_qnn

        qnn.detect()
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        htp = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": _SOC_MODEL}
        options.add_provider_for_devices(qnn.provider_devices(), htp)
        session = onnxruntime.InferenceSession(_onnx(), options, enable_fallback=0)
        return session.run(None, {"left": left, "right": right})[0]

    yield "qnn", "HTP", _HALF, multiply


_WORK: Final[dict[str, Callable[[], Iterator[Work]]]] = {
    "torch": _torch,
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
    "qnn": _qnn,
}


def _onnx() -> bytes:
    """A model of one MatMul, so that nothing needs the package onnx to make one."""
    return (importlib.resources.files("hwmatrix.reporter") / "stack_probe.onnx").read_bytes()


def _since(begin: float) -> float:
    return round((time.perf_counter() - begin) * 1000, 3)


def _emit(event: dict[str, Any]) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(event)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
