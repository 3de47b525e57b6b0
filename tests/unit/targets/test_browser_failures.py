from __future__ import annotations

import pytest

from hwmatrix.errors import UnsupportedError
from hwmatrix.faults.catalogue import entry_for
from hwmatrix.records import Status
from hwmatrix.targets.browser.failures import failure_of

# Real messages of Chromium 156, Chromium 147 (WebNN) and ONNX Runtime Web 1.30.
NO_ADAPTER = (
    "Error: no available backend found. ERR: [webgpu] Error: Failed to get GPU adapter. "
    'You may need to enable flag "--enable-unsafe-webgpu" if you are using Chrome.'
)
NO_WEBNN = "NotSupportedError: Failed to execute 'createContext' on 'ML': WebNN is not supported on this platform."
CONTEXT_LOST = "InvalidStateError: Failed to execute 'readTensor' on 'MLContext': Tensor has been destroyed or context is lost."
NO_SERVICE = "UnknownError: Failed to execute 'createContext' on 'ML': WebNN service connection error."
INSTANCE_GONE = "unknown: A valid external Instance reference no longer exists."
DESTROY = "TypeError: Cannot read properties of undefined (reading 'destroy')"
FEATURE = "TypeError: Failed to execute 'requestDevice' on 'GPUAdapter': Unsupported feature: shader-f16"
LIMIT = (
    "OperationError: Failed to execute 'requestDevice' on 'GPUAdapter': Required limit (1099511627776) is greater than the "
    "supported limit (1073741824).\n - While validating maxBufferSize\n - While validating required limits"
)
MEMORY = "GPUOutOfMemoryError: vkAllocateMemory failed with VK_ERROR_OUT_OF_DEVICE_MEMORY\n - While calling [Device].CreateBuffer"
NO_HEAP = "Error: failed to call OrtRun(). ERROR_CODE: 6, ERROR_MESSAGE: std::bad_alloc"
SHADER = "Error while parsing WGSL: :1:7 error: expected ')' for function declaration\nfn f( {\n      ^"
KERNEL = (
    "Error: Can't create a session. ERROR_CODE: 1, ERROR_MESSAGE: onnxruntime/core/optimizer/transformer_memcpy.cc:254 bool "
    "onnxruntime::TransformerMemcpyImpl::IsNodeCompatibleWithProvider(const onnxruntime::Node &) const !node_provider_type.empty() "
    "was false. Provider type for ImageDecoder node with name 'node_x' is not set.\n"
)
REFUSED = "NotSupportedError: Failed to execute 'build' on 'MLGraphBuilder': gatherElements only supports constant indices."
PADDING = "NotSupportedError: Failed to execute 'build' on 'MLGraphBuilder': The edge padding mode is not supported in tflite schema."


@pytest.mark.parametrize(
    ("message", "status", "error_type"),
    [
        (NO_ADAPTER, Status.UNAVAILABLE, "webgpu_no_adapter"),
        (NO_WEBNN, Status.UNAVAILABLE, "webnn_unavailable"),
        (CONTEXT_LOST, Status.CRASH, "webnn_context_lost"),
        (NO_SERVICE, Status.CRASH, "webnn_context_lost"),
        (FEATURE, Status.UNSUPPORTED, "webgpu_unsupported_feature"),
        (LIMIT, Status.UNSUPPORTED, "webgpu_limit_exceeded"),
        (MEMORY, Status.OOM, "webgpu_out_of_memory"),
        (NO_HEAP, Status.OOM, "webgpu_out_of_memory"),
        (SHADER, Status.ERROR, "webgpu_shader_compile"),
        (KERNEL, Status.UNSUPPORTED, "unsupported_operator"),
        (REFUSED, Status.UNSUPPORTED, "unsupported_operator"),
        (PADDING, Status.UNSUPPORTED, "unsupported_operator"),
        ("Error: something else", Status.ERROR, "browser_runtime_failed"),
    ],
)
def test_each_message_becomes_its_failure(message: str, status: Status, error_type: str) -> None:
    failure = failure_of({"error": message, "lost": None, "log": []})
    assert (failure.status, failure.error_type) == (status.value, error_type)
    assert message.strip() in str(failure)
    assert entry_for(error_type, "webgpu").type == error_type


def test_a_lost_device_is_the_cause_of_other_errors() -> None:
    failure = failure_of({"error": DESTROY, "lost": INSTANCE_GONE})
    assert (failure.status, failure.error_type) == ("crash", "webgpu_device_lost")
    assert INSTANCE_GONE in str(failure)
    assert DESTROY in str(failure)


@pytest.mark.parametrize(
    ("message", "needs"),
    [
        (FEATURE, ("shader-f16",)),
        (LIMIT, ("maxBufferSize",)),
        (KERNEL, ("ImageDecoder",)),
        (REFUSED, ("GatherElements",)),
        (PADDING, ("Pad",)),
    ],
)
def test_missing_features_are_named(message: str, needs: tuple[str, ...]) -> None:
    failure = failure_of({"error": message})
    assert isinstance(failure, UnsupportedError)
    assert failure.needs == needs


def test_only_errors_of_the_runtime_s_log_are_reported() -> None:
    log = ["x [V:onnxruntime:, a.cc:1 F] chatter", f"x [E:onnxruntime:, b.cc:2 G] {MEMORY}"]
    failure = failure_of({"error": "Error: failed to call OrtRun()", "log": log})
    assert failure.error_type == "webgpu_out_of_memory"
    assert "chatter" not in str(failure)
