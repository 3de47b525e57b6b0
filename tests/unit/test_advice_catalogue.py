from __future__ import annotations

import importlib.resources
import re
from pathlib import Path

import pytest
import yaml

from hwmatrix.advice.catalogue import UNMATCHED, Match, Rule, advice_for, catalogue, entry_for, match, severity_of
from hwmatrix.records import Severity, Stage, Status

# Messages as the frameworks gave them: torch 2.13, transformers 5.23, openvino 2026.4, numpy 2.
TORCH_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000 bytes. "
    "Error code 12 (Cannot allocate memory)"
)
NUMPY_MEMORY = "Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"
OPENVINO_MEMORY = (
    "Exception from src/inference/src/cpp/compiled_model.cpp:128:\nException from src/core/src/runtime/allocator.cpp:79:\nstd::bad_alloc"
)
OPENVINO_PLUGIN_MEMORY = (
    "Check 'ptr' failed at src/plugins/intel_cpu/src/cpu_memory.cpp:257:\nFailed to allocate 7663872811008 bytes of memory"
)
OPENVINO_THREADS = "Exception from src/inference/src/dev/plugin.cpp:54:\nResource temporarily unavailable"
OPENVINO_OPERATOR = (
    "Check 'false' failed at src/frontends/common_translators/src/unconverted_ops_report.cpp:151:\n"
    "FrontEnd API failed with OpConversionFailure:\nModel wasn't fully converted.\nSummary:\n"
    "-- No conversion rule found for operations: aten::special_bessel_j0"
)
OPENVINO_SHAPES = (
    "Check 'DimType::merge(merged_dimension, arg0_col_dim, arg1_row_dim)' failed at "
    "src/core/shape_inference/include/matmul_shape_inference.hpp:65:\nIncompatible MatMul matrix dimension."
)
OPENVINO_INPUT = (
    "Exception from src/inference/src/cpp/infer_request.cpp:117:\nCan't set the input tensor with index: 0, because the model input "
    "(shape=[2,3]) and the tensor (shape=(5.5)) are incompatible"
)
OPENVINO_GPU = (
    'Exception from src/inference/src/cpp/core.cpp:117:\nCannot load library "/venv/openvino/libs/libopenvino_intel_gpu_plugin.so": '
    "libOpenCL.so.1: cannot open shared object file: No such file or directory"
)
OPENVINO_DEVICE = (
    'Exception from src/inference/src/dev/core_impl.cpp:706:\nDevice with "XYZ" name is not registered in the OpenVINO Runtime'
)
GUARD = "Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1)).  (Size-like symbols: none)"
CUDA_MEMORY = "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is free."
HIP_MEMORY = "HIP out of memory. Tried to allocate 432.00 MiB. GPU 0 has a total capacity of 15.92 GiB of which 7.12 GiB is free."
MPS_MEMORY = (
    "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 GiB). "
    "Tried to allocate 292.50 MiB on private pool."
)
REMOTE_CODE = (
    "The repository /models/x contains custom code which must be executed to correctly load the model.\n"
    "Please pass the argument `trust_remote_code=True` to allow custom code to be run."
)
UNKNOWN_TYPE = "The checkpoint you are trying to load has model type `zzz` but Transformers does not recognize this architecture."
TRACING = "Couldn't get TorchScript module by tracing.\nException:\noutput 1 ({1: 1}) of traced region cannot be understood by the tracer"

RECOGNISED = [
    (TORCH_MEMORY, "cpu", Status.ERROR, Stage.LOAD, None, "memory_pressure"),
    (NUMPY_MEMORY, "cpu", Status.ERROR, Stage.RUN, None, "memory_pressure"),
    (OPENVINO_MEMORY, "openvino", Status.ERROR, Stage.RUN, None, "memory_pressure"),
    (OPENVINO_PLUGIN_MEMORY, "openvino", Status.ERROR, Stage.PREPARE, None, "memory_pressure"),
    ("", "cpu", Status.ERROR, Stage.LOAD, MemoryError(), "memory_pressure"),
    ("MemoryError", "cpu", None, None, "builtins.MemoryError", "memory_pressure"),
    ("more than the limit", "cpu", Status.OOM, Stage.RUN, None, "memory_pressure"),
    (CUDA_MEMORY, "cuda", Status.OOM, Stage.RUN, None, "memory_pressure"),
    (HIP_MEMORY, "rocm", Status.OOM, Stage.RUN, None, "memory_pressure"),
    (MPS_MEMORY, "mps", Status.OOM, Stage.RUN, None, "memory_pressure"),
    ("CUDA error: no kernel image is available for execution on the device", "cuda", None, Stage.RUN, None, "gpu_not_usable"),
    ('could not select device driver "" with capabilities: [[gpu]]', "cuda", None, None, None, "container_toolkit_missing"),
    ("the kernel killed the process for memory (SIGKILL, and the cgroup counts an oom_kill)", "cpu", Status.OOM, None, None, "oom_killed"),
    (OPENVINO_THREADS, "openvino", Status.ERROR, Stage.PREPARE, None, "thread_limit"),
    ("no end within 120 s; the process was killed", "cpu", Status.TIMEOUT, Stage.RUN, None, "timeout"),
    ("the limit of CPU time was reached (SIGXCPU)", "cpu", Status.TIMEOUT, Stage.RUN, None, "cpu_time_limit"),
    ("the process was ended by SIGSEGV (signal 11)", "cpu", Status.CRASH, Stage.RUN, None, "segmentation_fault"),
    ("the process was ended by SIGABRT (signal 6)", "cpu", Status.CRASH, Stage.RUN, None, "abort"),
    ("the process was ended by SIGILL (signal 4)", "cpu", Status.CRASH, Stage.RUN, None, "illegal_instruction"),
    ("the process was ended by SIGFPE (signal 8)", "cpu", Status.CRASH, Stage.RUN, None, "floating_point_exception"),
    ("the process was ended by SIGKILL (signal 9)", "cpu", Status.CRASH, Stage.RUN, None, "killed"),
    ("the process left with exit code 3 before it gave a verdict", "cpu", Status.CRASH, Stage.RUN, None, "process_exit"),
    ("NaN or infinity in logits", "cpu", Status.MISMATCH, Stage.COMPARE, None, "non_finite_output"),
    ("missing outputs: logits", "cpu", Status.MISMATCH, Stage.COMPARE, None, "missing_output"),
    ("relative L2 error 0.3 of logits exceeds 0.001", "cpu", Status.MISMATCH, Stage.COMPARE, None, "mismatch"),
    ("nothing ran on the target", "openvino", Status.FALLBACK, Stage.RUN, None, "fallback"),
    (OPENVINO_OPERATOR, "openvino", Status.ERROR, Stage.PREPARE, None, "unsupported_operator"),
    ("\"cdist\" not implemented for 'Half'", "cpu", Status.ERROR, Stage.RUN, None, "unsupported_dtype"),
    (GUARD, "openvino", Status.ERROR, Stage.PREPARE, None, "data_dependent_export"),
    (TRACING, "openvino", Status.ERROR, Stage.PREPARE, None, "export_failed"),
    (OPENVINO_SHAPES, "openvino", Status.ERROR, Stage.PREPARE, None, "compile_failed"),
    (OPENVINO_INPUT, "openvino", Status.ERROR, Stage.RUN, None, "inference_failed"),
    (OPENVINO_GPU, "openvino", Status.ERROR, Stage.PREPARE, None, "openvino_device_missing"),
    (OPENVINO_DEVICE, "openvino", Status.UNAVAILABLE, Stage.LOAD, None, "openvino_device_missing"),
    ("Torch not compiled with CUDA enabled", "cuda", Status.ERROR, Stage.LOAD, None, "target_unavailable"),
    ("No module named 'timm'", "cpu", Status.ERROR, Stage.LOAD, ModuleNotFoundError(), "missing_package"),
    ("\nTimmBackbone requires the timm library but it was not found in your environment.", "cpu", None, None, None, "missing_package"),
    (REMOTE_CODE, "cpu", Status.FACTORY_ERROR, Stage.BUILD, None, "remote_code_refused"),
    ("Error no file named model.safetensors found in directory /models/bert.", "cpu", None, Stage.LOAD, None, "pickle_refused"),
    (UNKNOWN_TYPE, "cpu", Status.FACTORY_ERROR, Stage.BUILD, None, "unknown_architecture"),
    ("We couldn't connect to 'https://hub.example' to load the files", "cpu", None, None, None, "hub_unreachable"),
    ("404", "cpu", Status.FACTORY_ERROR, None, "huggingface_hub.errors.RepositoryNotFoundError", "hub_not_found"),
    ("[Errno 28] No space left on device", "cpu", Status.INFRA_ERROR, None, None, "disk_full"),
    (
        "Cannot connect to the Docker daemon at unix:///nope.sock. Is the docker daemon running?",
        "cpu",
        None,
        None,
        None,
        "engine_unavailable",
    ),
    ("could not be made", "cpu", Status.FACTORY_ERROR, Stage.BUILD, None, "factory_failed"),
    ("the container vanished", "cpu", Status.INFRA_ERROR, Stage.LOAD, None, "infrastructure"),
]


@pytest.mark.parametrize(("message", "hardware", "status", "stage", "exception", "expected"), RECOGNISED)
def test_real_messages_are_recognised(  # noqa: PLR0917 - the columns of the table above
    message: str, hardware: str, status: Status | None, stage: Stage | None, exception: BaseException | str | None, expected: str
) -> None:
    found = match(message, hardware=hardware, status=status, stage=stage, exception=exception)
    assert found.type == expected
    assert found.severity == severity_of(expected, hardware)


@pytest.mark.parametrize("message", ["", "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)", "index out of range in self"])
def test_what_nobody_has_seen_is_not_guessed(message: str) -> None:
    assert match(message, hardware="cpu", status=Status.ERROR, stage=Stage.RUN) == Match(type=UNMATCHED, severity=Severity.ERROR)


def test_an_entry_for_other_hardware_is_not_used() -> None:
    assert match(OPENVINO_INPUT, hardware="cpu", status=Status.ERROR, stage=Stage.RUN).type == UNMATCHED


def test_base_classes_of_an_exception_count() -> None:
    class ArrayMemoryError(MemoryError):
        pass

    assert match("", hardware="cpu", exception=ArrayMemoryError()).type == "memory_pressure"
    assert match("", hardware="cpu", exception=ArrayMemoryError).type == "memory_pressure"


def test_advice_for_the_hardware_comes_before_advice_for_any() -> None:
    assert advice_for("memory_pressure", "cuda") != advice_for("memory_pressure", "cpu")
    assert any("Split the model over several GPUs" in line for line in advice_for("memory_pressure", "cuda"))
    assert severity_of("memory_pressure", "cuda") is Severity.CRITICAL
    assert severity_of("memory_pressure", "cpu") is Severity.ERROR


def test_an_unknown_type_gets_the_advice_for_unmatched() -> None:
    assert entry_for("no_such_type", "cpu").type == UNMATCHED
    assert advice_for("no_such_type", "cpu") == advice_for(UNMATCHED, "cpu")


def test_every_entry_is_whole_and_can_be_told_apart() -> None:
    seen = set()
    for entry in catalogue():
        assert entry.recommendations
        assert all(line.strip().endswith(".") for line in entry.recommendations)
        assert entry.summary.endswith(".")
        assert (entry.type, entry.hardware) not in seen
        seen.add((entry.type, entry.hardware))
    assert UNMATCHED in {entry.type for entry in catalogue()}


def test_every_rule_is_reachable() -> None:
    """An entry for one kind of hardware must stand before an entry for any of the same type, or it would never be used."""
    general: set[str] = set()
    for entry in catalogue():
        assert entry.hardware == "any" or entry.type not in general
        if entry.hardware == "any":
            general.add(entry.type)


def test_a_rule_without_conditions_is_refused() -> None:
    with pytest.raises(ValueError, match="a rule needs"):
        Rule()


def test_patterns_are_quick_on_long_messages() -> None:
    """No pattern may take time that grows faster than the message: models write what they like."""
    found = match("outputs " * 20_000 + "x" * 200_000, hardware="openvino", status=Status.MISMATCH, stage=Stage.COMPARE)
    assert found.type == "mismatch"


def test_every_type_that_the_program_sets_is_in_the_catalogue() -> None:
    package = Path(str(importlib.resources.files("hwmatrix")))
    known = {entry.type for entry in catalogue()}
    used = {name for path in package.rglob("*.py") for name in re.findall(r'error_type="([a-z_]+)"', path.read_text(encoding="utf-8"))}
    assert used
    assert used <= known


def test_every_type_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "errors.md"
    documented = set(re.findall(r"^\| `([a-z_]+)`", page.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert documented == {entry.type for entry in catalogue()}


def test_the_file_holds_nothing_that_is_not_read() -> None:
    raw = yaml.safe_load((importlib.resources.files("hwmatrix.advice") / "catalogue.yaml").read_text(encoding="utf-8"))
    assert set(raw) == {"version", "errors"}
    assert len(raw["errors"]) == len(catalogue())
