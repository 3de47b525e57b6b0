from __future__ import annotations

import pytest

from hwmatrix.targets.onnx.graph import refusal

# Real messages of onnxruntime 1.31.1 and ONNX Runtime Web 1.30.0.
MESSAGES = [
    (
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for RoiAlign(22) node with name ''",
        ("RoiAlign",),
        "unsupported_operator",
    ),
    (
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Failed to find kernel for Cast(25) (node:'' ep:'CPUExecutionProvider').",
        ("Cast",),
        "unsupported_operator",
    ),
    (
        "[ONNXRuntimeError] : 1 : FAIL : Fatal error: ai.onnx.preview.training:Momentum(-1) is not a registered function/op",
        ("ai.onnx.preview.training.Momentum",),
        "unsupported_operator",
    ),
    (
        "Error: Can't create a session. ERROR_CODE: 6, ERROR_MESSAGE: No Op registered for Binarizer with domain_version of 1",
        ("Binarizer",),
        "unsupported_operator",
    ),
    (
        "[ONNXRuntimeError] : 1 : FAIL : model.cc:256 Unsupported model IR version: 14, max supported IR version: 13",
        ("ONNX IR version 14",),
        "unsupported_opset",
    ),
    (
        "ONNX Runtime only *guarantees* support for official released onnx opset versions. Opset 27 is under development and [...]",
        ("opset 27",),
        "unsupported_opset",
    ),
]


@pytest.mark.parametrize(("text", "needs", "kind"), MESSAGES)
def test_missing_operators_of_the_runtime_are_named(text: str, needs: tuple[str, ...], kind: str) -> None:
    found = refusal(text)
    assert found is not None
    assert (found.needs, found.error_type, str(found)) == (needs, kind, text)


@pytest.mark.parametrize(
    "text",
    [
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Attention node. Name:'' Status Message: no",
        "[ONNXRuntimeError] : 10 : INVALID_GRAPH : Unrecognized attribute: left_window_size for operator Attention",
        "NotImplementedError",
    ],
)
def test_other_errors_stay_errors(text: str) -> None:
    assert refusal(text) is None
