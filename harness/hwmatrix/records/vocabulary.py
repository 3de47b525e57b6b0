"""The closed enums: every word that files and reports may use."""

from __future__ import annotations

import enum
import types
from typing import Final


class Backend(enum.StrEnum):
    """The backends of this package, which the advice covers. ``records/backends.py`` says where to find them and others."""

    CPU = "cpu"
    OPENVINO = "openvino"
    ONNXRUNTIME = "onnxruntime"
    CUDA = "cuda"
    ROCM = "rocm"
    MPS = "mps"
    WEBGPU = "webgpu"
    WEBNN = "webnn"
    QNN = "qnn"
    INDUCTOR = "inductor"
    EXECUTORCH = "executorch"


class Family(enum.StrEnum):
    """What a model is for."""

    EMBEDDING = "embedding"
    TEXT_GENERATION = "text_generation"
    VISION = "vision"
    AUDIO = "audio"
    MULTIMODAL = "multimodal"
    VIDEO = "video"
    DIFFUSION = "diffusion"
    OTHER = "other"


class Size(enum.StrEnum):
    """``tiny`` shows whether a model works; ``full`` has the architecture's canonical dimensions and shows how fast it is.

    A checkpoint is always ``full``: it has its own dimensions.
    """

    TINY = "tiny"
    FULL = "full"


class Dtype(enum.StrEnum):
    """The precision that a cell's model is given in. docs/precision.md says for each runtime what is rounded, and how.

    ``a16w8`` and ``a8w8`` are quantized with calibrated ranges: 16 or 8 bits for activations, 8 for weights. ``int8_dynamic`` has 8 bits
    for both, and takes the ranges of activations from each input as it runs. ``int8`` and ``int4`` round weights only, and
    ``int4_float16`` is float16 with weights in 4 bits. ``default`` leaves the choice to the runtime, which then says which of the others it
    chose on this machine.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    A16W8 = "a16w8"
    A8W8 = "a8w8"
    INT8_DYNAMIC = "int8_dynamic"
    INT8 = "int8"
    INT4 = "int4"
    INT4_FLOAT16 = "int4_float16"
    DEFAULT = "default"

    @property
    def kernels_in(self) -> Dtype:
        """What a graph with rounded weights computes in: its own error is compared with the noise floor of this precision."""
        return Dtype.FLOAT16 if self is Dtype.INT4_FLOAT16 else Dtype.FLOAT32

    @property
    def weight_bits(self) -> int:
        """Bits of a weight. Where the runtime chooses the precision, as many as in float32."""
        if self in {Dtype.INT4, Dtype.INT4_FLOAT16}:
            return 4
        if self in {Dtype.A16W8, Dtype.A8W8, Dtype.INT8_DYNAMIC, Dtype.INT8}:
            return 8
        return 16 if self in {Dtype.FLOAT16, Dtype.BFLOAT16} else 32

    @property
    def quantizes_activations(self) -> bool:
        """Whether values are quantized as the model runs, and not only its weights in advance."""
        return self in {Dtype.A16W8, Dtype.A8W8, Dtype.INT8_DYNAMIC}


class Instructions(enum.StrEnum):
    """Instruction sets that matter for models, of x86-64 and of ARM, by their names in Linux."""

    AVX = "avx"
    AVX2 = "avx2"
    AVX512F = "avx512f"
    AVX512_BF16 = "avx512_bf16"
    AVX512_FP16 = "avx512_fp16"
    AVX512_VNNI = "avx512_vnni"
    AVX_VNNI = "avx_vnni"
    AMX_BF16 = "amx_bf16"
    AMX_FP16 = "amx_fp16"
    AMX_INT8 = "amx_int8"
    F16C = "f16c"
    FMA = "fma"
    NEON = "neon"
    ASIMD = "asimd"
    ASIMDHP = "asimdhp"
    ASIMDDP = "asimddp"
    BF16 = "bf16"
    I8MM = "i8mm"
    SVE = "sve"
    SVE2 = "sve2"
    SME = "sme"


class Stage(enum.StrEnum):
    """How far a cell got, in this order. A cell that generates has ``prefill`` and ``decode`` in place of ``run``."""

    BUILD = "build"
    LOAD = "load"
    PREPARE = "prepare"
    RUN = "run"
    PREFILL = "prefill"
    DECODE = "decode"
    COMPARE = "compare"
    MEASURE = "measure"

    @classmethod
    def of(cls, new_tokens: int) -> tuple[Stage, ...]:
        """The stages of a cell that generates this many tokens; 0: of one forward pass."""
        others = {cls.RUN} if new_tokens else {cls.PREFILL, cls.DECODE}
        return tuple(stage for stage in cls if stage not in others)


class Status(enum.StrEnum):
    """How a cell ended. The list is closed, and no two statuses mean the same thing."""

    PASS = "pass"  # noqa: S105 - a status, not a password
    MISMATCH = "mismatch"
    FALLBACK = "fallback"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASH = "crash"
    UNAVAILABLE = "unavailable"
    NOT_RUN = "not_run"
    FACTORY_ERROR = "factory_error"
    INFRA_ERROR = "infra_error"


class Level(enum.StrEnum):
    """How well a model works on a target, from measurements alone. A cell that was not executed has no level."""

    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"
    NONE = "none"


class Execution(enum.StrEnum):
    """What executed the model: only ``hardware`` is ever ranked by speed."""

    HARDWARE = "hardware"
    SOFTWARE = "software"
    EMULATED = "emulated"


class Severity(enum.StrEnum):
    """How much an error matters."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Preparation(enum.StrEnum):
    """What a cell's model went through before it ran (docs/preparation.md). What changes the model makes the level Low."""

    TRANSFORMERS_EXPORT = "transformers_export"
    """Exported by transformers' exporter for the runtime, with what that exporter itself replaces."""
    TORCH_EXPORT = "torch_export"
    """Exported by PyTorch's own exporter."""
    TRACE = "trace"
    """Converted by OpenVINO's own converter, from a TorchScript trace."""
    FIXED_SHAPES = "fixed_shapes"
    """Every shape is that of the inputs."""
    BOUNDED_LENGTHS = "bounded_lengths"
    """Lengths may vary up to that of the longest prompt, for which memory is planned."""
    CONSTANT_INPUTS = "constant_inputs"
    """Inputs that describe sizes, and what an exporter computes from them, are constants of the graph."""
    REPLACED_OPERATORS = "replaced_operators"
    """Operators were replaced by others with the same results. They are listed as ``replaced``."""
    RAISED_MASKS = "raised_masks"
    """The lowest numbers in constants became -100, so that a range of 8 or 16 bits has room for the others."""
    RENAMED_CONSTANTS = "renamed_constants"
    """Constants got names that the quantizer does not mistake for copies of others."""
    KEPT_INTEGERS = "kept_integers"
    """The quantizer was made to leave integers alone, which it would round or turn into floating-point numbers."""

    @property
    def changes_model(self) -> bool:
        """Whether hwmatrix changed the model to make it run, which no user of the runtime does: an adaptation."""
        return self in _CHANGES


_CHANGES: Final = frozenset(
    {Preparation.REPLACED_OPERATORS, Preparation.RAISED_MASKS, Preparation.RENAMED_CONSTANTS, Preparation.KEPT_INTEGERS}
)
_EXPORTED: Final = types.MappingProxyType(
    {"transformers": Preparation.TRANSFORMERS_EXPORT, "torch": Preparation.TORCH_EXPORT, "trace": Preparation.TRACE}
)


def exported_by(export: str) -> Preparation:
    """Return the preparation by an export method of a backend, by the method's name in its descriptor."""
    return _EXPORTED[export]


class Origin(enum.StrEnum):
    """Where a wrong result begins."""

    STEP = "step"
    """A node or layer whose inputs match the reference and whose outputs do not."""
    GRADUAL = "gradual"
    """No single step: small errors accumulate until they exceed the tolerance."""
    GRAPH = "graph"
    """Before the target: the exported graph gives wrong numbers on the reference runtime as well."""
    FUSED = "fused"
    """A fusion of the runtime: if the values between the steps are kept, the result is right."""
    UNKNOWN = "unknown"
    """The search was not possible, or found nothing."""


class Isolation(enum.StrEnum):
    """What separates a target from this machine. Rows of different isolation never share a column."""

    CONTAINER = "container"
    VENV = "venv"
    NONE = "none"


class Role(enum.StrEnum):
    """The purpose of a cell. Canaries show whether a shard can be trusted and never appear in a matrix.

    An adapted cell retries a failed cell with one change; it is recorded beside the failed one and does not replace it.
    """

    MODEL = "model"
    ADAPTED = "adapted"
    CANARY_GOOD = "canary_good"
    CANARY_WRONG = "canary_wrong"
