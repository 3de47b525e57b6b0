"""Error messages without the parts that differ between models, and the locations where they were raised."""

from __future__ import annotations

import pytest
from factory_sweep import TRACEBACK

from hwmatrix.faults.wording import LONGEST, normalized, site_of

FRAME = '  File "{path}", line 7, in {function}\n    call()\n'
PACKAGES = "/opt/venv/lib/python3.11/site-packages"
HEAD = "Traceback (most recent call last):\n"


def frames(*places: tuple[str, str]) -> str:
    return HEAD + "".join(FRAME.format(path=path, function=function) for path, function in places)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "The size of tensor a (3) must match the size of tensor b (4)",
            "The size of tensor a (<n>) must match the size of tensor b (<n>)",
        ),
        ("shape '[4, 2]' is invalid for input of size 6", "shape '<shape>' is invalid for input of size <n>"),
        ("expected torch.Size([1, 16, 512]), got [1, 16]", "expected <shape>, got <shape>"),
        ("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)", "mat1 and mat2 shapes cannot be multiplied (<shape>)"),
        ("no kernel at 0x7ffe12ab", "no kernel at <address>"),
        ("[Errno 2] No such file: '/tmp/a/b/model.onnx'", "[Errno <n>] No such file: '<path>'"),
        ("'/model/layers.0/MatMul_output_0' is not known", "'<path>' is not known"),
        ("Invalid input name: node_view_3", "Invalid input name: <name>"),
        ("layers.3.self_attn.q_proj failed", "<name> failed"),
        ("relative L2 error 0.3 of logits exceeds 0.001", "relative L2 error <n> of <name> exceeds <n>"),
        ("BertForMaskedLM cannot be built: KeyError: 'rope_theta'", "<class> cannot be built: KeyError: 'rope_theta'"),
        ("forward() missing 1 required positional argument: 'bbox'", "forward() missing <n> required positional argument: 'bbox'"),
        (
            "guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1))",
            "guard on data-dependent expression <expression>",
        ),
        ("Exporting the operator 'aten::linalg_svd' is not supported", "Exporting the operator 'aten::linalg_svd' is not supported"),
        ("\"cdist\" not implemented for 'Half'", "\"cdist\" not implemented for 'Half'"),
        ("got float32 and int64", "got float32 and int64"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("", ""),
        ("\n\n  \n", ""),
    ],
)
def test_varying_parts_are_masked(message: str, told: str) -> None:
    assert normalized(message) == told


def test_introductory_lines_are_skipped() -> None:
    message = "Exception from src/inference/core.cpp:104:\nCheck 'false' failed at src/plugins/x.cpp:9:\n[CPU] no such layer"
    assert normalized(message) == "[CPU] no such layer"
    assert normalized("Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight") == (
        "Error(s) in loading state_dict for Linear: size mismatch for weight"
    )
    assert normalized("Exception from src/a/b.cpp:1:") == "Exception from <path>:"


def test_the_model_s_own_names_are_masked() -> None:
    assert normalized("qwen3-vl, of qwen3_vl: no such thing", {"qwen3-vl", "qwen3_vl"}) == "<model>, of <model>: no such thing"
    assert normalized("a bert-like berta is no bert", {"bert"}) == "a bert-like berta is no <model>"


def test_the_messages_of_two_models_become_equal() -> None:
    messages = {f"arch_{n}": f"Arch{n}Model fails on (1, {n}) in arch_{n}: /site/arch_{n}/x.py:{n} gave 0.{n}" for n in range(3, 40)}
    assert len({normalized(message, {name}) for name, message in messages.items()}) == 1


def test_long_messages_are_cut() -> None:
    told = normalized("word " * 10_000)
    assert len(told) <= LONGEST
    assert told.endswith("…")


def test_the_deepest_frame_in_transformers_is_the_location() -> None:
    found = site_of(TRACEBACK.format(kind="qwen2_vl", line=3))
    assert found is not None
    assert str(found) == "models/qwen2_vl/modeling_qwen2_vl.py::get_rope_index"
    assert found.construct == "models/*/modeling_*.py::get_rope_index: for step in range(int(image_grid_thw.max())):"
    assert found.exact == "models/qwen2_vl/modeling_qwen2_vl.py:3 in get_rope_index"


def test_code_shared_by_models_is_the_construct() -> None:
    shared = (f"{PACKAGES}/transformers/masking_utils.py", "sdpa_mask")
    found = site_of(frames((f"{PACKAGES}/transformers/models/bert/modeling_bert.py", "forward"), shared))
    assert found is not None
    assert found.construct == "masking_utils.py::sdpa_mask: call()"


def test_the_root_cause_counts_not_the_exception_that_followed() -> None:
    first = frames((f"{PACKAGES}/transformers/models/bert/modeling_bert.py", "forward")) + "ValueError: a\n\n"
    then = "The above exception was the direct cause of the following exception:\n\n"
    last = frames((f"{PACKAGES}/transformers/models/vit/modeling_vit.py", "call")) + "RuntimeError: b\n"
    assert str(site_of(first + then + last)) == "models/bert/modeling_bert.py::forward"


def test_the_last_of_two_attempts_counts_unless_it_has_no_location() -> None:
    first = frames((f"{PACKAGES}/transformers/models/bert/modeling_bert.py", "forward")) + "ValueError: a\n\n"
    then = "During handling of the above exception, another exception occurred:\n\n"
    traced = frames((f"{PACKAGES}/transformers/models/vit/modeling_vit.py", "call")) + "RuntimeError: b\n"
    elsewhere = frames((f"{PACKAGES}/openvino/frontend.py", "convert")) + "RuntimeError: b\n"
    assert str(site_of(first + then + traced)) == "models/vit/modeling_vit.py::call"
    assert str(site_of(first + then + elsewhere)) == "models/bert/modeling_bert.py::forward"


def test_a_comprehension_is_named_by_its_function() -> None:
    file = f"{PACKAGES}/transformers/models/vilt/modeling_vilt.py"
    assert str(site_of(frames((file, "visual_embed"), (file, "<listcomp>")))) == "models/vilt/modeling_vilt.py::visual_embed"
    assert str(site_of(frames((file, "<listcomp>")))) == "models/vilt/modeling_vilt.py::<listcomp>"


def test_if_all_exporters_failed_the_location_of_the_first_counts() -> None:
    path = "/site-packages/hwmatrix/targets/onnx/onnxruntime.py"
    own = f'Traceback (most recent call last):\n  File "{path}", line 80, in prepare\n    raise x\n'
    message = "hwmatrix.errors.CellFailure: no exporter made a graph: Caused by: (transformers/models/led/modeling_led.py:1 in other)\n"
    led = frames((f"{PACKAGES}/transformers/models/led/modeling_led.py", "forward"), (f"{PACKAGES}/torch/fx/sym_node.py", "guard_bool"))
    torch = frames((f"{PACKAGES}/transformers/models/bart/modeling_bart.py", "forward"))
    notes = f"\nThe exporter by transformers failed:\n{led}Guard: u0\n\nThe exporter by torch failed:\n{torch}Guard: u1\n"
    found = site_of(own + message + notes)
    assert found is not None
    assert found.exact == "models/led/modeling_led.py:7 in forward"
    died = f"\nThe exporter by transformers failed:\nkilled by SIGSEGV\n\nThe exporter by torch failed:\n{torch}Guard: u1\n"
    assert str(site_of(own + "CellFailure: none\n" + died)) == "models/bart/modeling_bart.py::forward"
    assert str(site_of(own + message + "\nThe exporter by transformers failed:\nkilled\n")) == "models/led/modeling_led.py::other"


def test_frames_of_the_exporters_are_not_the_model_s_code() -> None:
    exporter = (f"{PACKAGES}/transformers/exporters/utils.py", "patched_forward")
    found = site_of(frames((f"{PACKAGES}/transformers/models/bert/modeling_bert.py", "forward"), exporter))
    assert str(found) == "models/bert/modeling_bert.py::forward"
    alone = site_of(frames(exporter))
    assert alone is not None
    assert (str(alone), alone.transformers) == ("transformers/exporters/utils.py::patched_forward", False)


def test_a_line_without_source_has_no_text_and_a_long_one_is_cut() -> None:
    bare = f'  File "{PACKAGES}/transformers/a.py", line 7, in f\n  File "{PACKAGES}/transformers/b.py", line 8, in g\n'
    found = site_of(bare)
    assert found is not None
    assert (found.code, found.construct, found.line) == (None, "b.py::g", 8)
    long = site_of(f'  File "{PACKAGES}/transformers/a.py", line 7, in f\n    {"x" * 500}\n')
    assert long is not None
    assert long.code == "x" * 119 + "…"


def test_failed_exports_have_the_message_and_location_of_the_first_exporter() -> None:
    guard = "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode: GuardOnDataDependentSymNode: Could not guard"
    first = f"{guard} on data-dependent expression Eq(u0, 1). Caused by: (transformers/models/led/modeling_led.py:549 in forward) For more"
    second = "torch: torch.onnx._internal.exporter._errors.TorchExportError: TorchExportError: Failed to export the model"
    message = f"no exporter made an ONNX graph of this model: transformers: {first}; {second}"
    assert normalized(message) == "GuardOnDataDependentSymNode: Could not guard on data-dependent expression <expression>"
    found = site_of(message)
    assert found is not None
    assert found.construct == "models/*/modeling_*.py::forward"
    other = f"no exporter made an ONNX graph of this model: transformers: builtins.ValueError: ValueError: Found 'x' in inputs; {second}"
    assert normalized(other) == "ValueError: Found 'x' in inputs"
    reason = "DispatchError: No ONNX function found for <OpOverload(op='aten.unsqueeze', overload='default')>."
    step = f"ConversionError: Failed to convert the program. This is step 3/3; caused by ConversionError: Error at %x; caused by {reason}"
    stateful = f"no exporter made an OpenVINO graph of this model: generation-openvino: {first}"
    assert normalized(stateful) == normalized(message)
    converted = f"no exporter made an ONNX graph of this model: transformers: torch.onnx.ConversionError: {step}; {second}"
    assert normalized(converted) == reason


def test_without_transformers_the_deepest_frame_outside_hwmatrix_counts() -> None:
    own, standard = (f"{PACKAGES}/hwmatrix/targets/x.py", "prepare"), ("/usr/lib/python3.11/json.py", "loads")
    places = ((f"{PACKAGES}/torch/onnx/_export.py", "export"), own, standard)
    assert str(site_of(frames(*places))) == "torch/onnx/_export.py::export"
    assert site_of(frames(*places[1:])) is None


@pytest.mark.parametrize("traceback", [None, "", "killed by SIGSEGV", 'File "x", line', "\x00" * 50])
def test_without_a_traceback_there_is_no_location(traceback: str | None) -> None:
    assert site_of(traceback) is None
