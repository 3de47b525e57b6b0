"""The types of matrix.yaml. Validation, the editor's JSON Schema and the documentation all come from here."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Final, Literal

import pydantic
import pydantic_core
from pydantic import Field
from pydantic.dataclasses import dataclass

from hwmatrix.records import TYPE_PREFIX, AdaptRule, Dtype, Execution, Family, MeasureRule, Size, Status
from hwmatrix.records.backends import names

SPEC_VERSION: Final = 1
IMAGE_PATTERN: Final = r"^[a-zA-Z0-9][a-zA-Z0-9_./:-]*(@sha256:[0-9a-f]{64})?$"
"""Matches an image's name and tag, with or without the digest that pins it."""
NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]*$"
CRON_PATTERN: Final = r"^[0-9*/,-]+( [0-9*/,-]+){2}( [0-9A-Za-z*/,-]+){2}$"
"""Matches minute, hour, day of the month, month and day of the week, as in GitHub's syntax."""

_STRICT = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
NameOrType = Annotated[str, Field(pattern=rf"^({TYPE_PREFIX})?{NAME_PATTERN.removeprefix('^')}")]
Positive = Annotated[int, Field(gt=0)]
Label = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A label of a CI runner. It is written into workflow files, so it must not contain special characters."""
HOSTED_PATTERN: Final = r"^(ubuntu|macos|windows)-[a-z0-9.-]+$"
"""Matches labels of GitHub-hosted runners: a new virtual machine per job, where a stranger's pull request may run."""


class _OfTheTable:
    """The name of a backend, of this package or of another installed one."""

    @staticmethod
    def known(name: str) -> str:
        """Return the name if there is such a backend."""
        if name not in names():
            raise pydantic_core.PydanticCustomError("enum", "Input should be {expected}", {"expected": ", ".join(names())})
        return name

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: pydantic.GetJsonSchemaHandler) -> dict[str, Any]:
        """List the known names. A backend of another package is in the schema only if the package is installed."""
        return {"description": "How a target executes a model (docs/adding-a-target.md).", "enum": list(names()), "type": "string"}


BackendName = Annotated[str, pydantic.AfterValidator(_OfTheTable.known), _OfTheTable]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SizeSpec:
    """Settings and limits of every cell of one size.

    ``new_tokens`` is how many tokens a model generates, if it can; 0: none. ``prompt_lengths`` are further prompts of so many tokens, as
    far as the model has positions for them and the new tokens.
    """

    batch: Positive = 1
    sequence_length: Positive = 16
    new_tokens: Annotated[int, Field(ge=0)] = 0
    prompt_lengths: Annotated[tuple[Positive, ...], Field(max_length=16)] = ()
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    memory_mb: Positive = 4096


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class VariantSpec:
    """A model in one size: configuration that differs from the architecture's defaults, or why it cannot be built."""

    config: dict[str, Any] = Field(default_factory=dict)
    batch: Positive | None = None
    sequence_length: Positive | None = None
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    memory_mb: Positive | None = None
    unbuildable: str | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ModelSpec:
    """A model: the class that loads it, where its weights come from, and its two sizes.

    ``weights`` is ``recipe`` (random weights from ``seed``), ``trained`` (the same, and the tiny model is then trained on a task whose
    answers are known; the full one stays random), ``factory`` (random, tiny only, and its configuration is made from the type
    ``architecture`` alone), ``hub`` (``hub_id``), or a checkpoint folder's path.
    """

    family: Family
    architecture: Name
    model_class: Annotated[str, Field(alias="class", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    hub_id: str | None = None
    revision: str | None = None
    weights: str = "recipe"
    seed: Annotated[int, Field(ge=0)] = 0
    tiny: VariantSpec = Field(default_factory=VariantSpec)
    full: VariantSpec = Field(default_factory=VariantSpec)

    def variant(self, size: Size) -> VariantSpec:
        """Return the settings of one size."""
        return self.tiny if size is Size.TINY else self.full


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TargetSpec:
    """A hardware target: a backend, the folder of its image under images/, and the backend's own options.

    ``dtypes`` are the precisions of every run, ``more_dtypes`` those that a suite's ``dtypes`` or ``--dtypes`` may add.
    ``devices`` are device nodes of this machine that its container gets, ``gpus`` asks the container toolkit for all GPUs. A
    ``native`` target never runs in a container. ``timeout_s`` is for every cell of it, instead of that of the size. ``runs_on`` are the
    labels that a CI runner must have for it; without any, it runs on the hosted ones of ``github``.
    """

    backend: BackendName
    image: Name
    base: Name = "torch-cpu"
    execution: Execution = Execution.HARDWARE
    dtypes: tuple[Dtype, ...] = (Dtype.FLOAT32,)
    more_dtypes: tuple[Dtype, ...] = ()
    threads: Positive = 1
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    devices: tuple[Annotated[str, Field(pattern=r"^/dev/[A-Za-z0-9/_.-]+$")], ...] = ()
    gpus: bool = False
    native: bool = False
    runs_on: tuple[Label, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def every_dtype(self) -> tuple[Dtype, ...]:
        """Every precision that it can be tested in."""
        return (*self.dtypes, *self.more_dtypes)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PartialMeasureSpec:
    """The keys of the matrix's ``measure`` that a suite overrides, with the same limits. None: as in the matrix."""

    warmup_s: Annotated[float, Field(ge=0)] | None = None
    warmup_iterations: Annotated[int, Field(ge=0)] | None = None
    min_s: Annotated[float, Field(ge=0)] | None = None
    min_samples: Annotated[int, Field(gt=0)] | None = None
    max_s: Annotated[float, Field(gt=0)] | None = None
    half_width: Annotated[float, Field(gt=0, lt=1)] | None = None

    def over(self, rule: MeasureRule) -> MeasureRule:
        """Return the rule, overridden by the values set here."""
        said = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(rule, **{name: value for name, value in said.items() if value is not None})


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AxesSpec:
    """The values of settings that a suite varies, as the options ``--batch``, ``--sequence-length`` and ``--threads`` do."""

    batch: tuple[Positive, ...] = ()
    sequence_length: tuple[Positive, ...] = ()
    threads: tuple[Positive, ...] = ()


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SuiteSpec:
    """A named selection of models, in one size.

    ``models: all`` means every model that is listed; ``models: types`` adds a tiny model for every other model type of the installed
    transformers, made from the type alone; ``models: diffusion`` means the models of that family, and a tiny one for every other class of
    diffusers that hwmatrix has a recipe for. ``timing: false`` tests only whether models work, not how fast they are; ``generation: false``
    runs only one forward pass; ``measure`` overrides keys of the matrix's; ``settings`` are varied. ``dtypes`` adds precisions: all of
    the ``more_dtypes`` of targets, or the named ones of some targets. ``exclude_targets`` run only where they are named.
    """

    size: Size = Size.TINY
    models: Literal["all", "types", "diffusion"] | tuple[Name, ...] = "all"
    timing: bool = True
    generation: bool = True
    dtypes: Literal["all"] | dict[Name, tuple[Dtype, ...]] = Field(default_factory=dict)
    measure: PartialMeasureSpec = Field(default_factory=PartialMeasureSpec)
    settings: AxesSpec = Field(default_factory=AxesSpec)
    exclude_targets: tuple[Name, ...] = ()
    description: str = ""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ExpectSpec:
    """A known problem: cells that are expected not to pass, how they end, why, and where to read about it.

    It applies to the cells of these models on these targets, in all precisions and sizes unless it names some,
    and to those that generate as well as those of one forward pass unless ``generation`` chooses. ``type:gemma3`` is the model
    that is made from the type gemma3 alone; in a run its name is ``gemma3``, unless matrix.yaml has a model of that name. A gate accepts
    that such a cell fails as expected, and fails if it ends otherwise. With ``strict: false`` the cell may also pass, as pytest's xfail.
    """

    models: Literal["all"] | Annotated[tuple[NameOrType, ...], Field(min_length=1)]
    targets: Literal["all"] | Annotated[tuple[Name, ...], Field(min_length=1)]
    dtypes: tuple[Dtype, ...] = ()
    sizes: tuple[Size, ...] = ()
    generation: bool | None = None
    status: Status
    error_type: str | None = None
    strict: bool = True
    reason: Annotated[str, Field(min_length=1)]
    link: Annotated[str, Field(min_length=1)]

    def covers(self, model: str, target: str, dtype: Dtype, size: Size, *, generates: bool) -> bool:
        """Whether the expectation applies to a cell."""
        return (
            self.generation in {None, generates}
            and (self.models == "all" or model in self.models)
            and (self.targets == "all" or target in self.targets)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.sizes or size in self.sizes)
        )


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ToleranceSpec:
    """How far outputs may be from the reference's, and why.

    ``excess`` and ``bound`` are multiples of the model's noise floor; without ``excess``, ``relative_error`` decides alone.
    """

    relative_error: Annotated[float, Field(gt=0, lt=1)]
    reason: Annotated[str, Field(min_length=1)]
    excess: Annotated[float, Field(ge=1)] | None = None
    bound: Annotated[float, Field(ge=1)] | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ImagesSpec:
    """How images are built: the image that the common base starts from (its name, best with its digest), and who builds bundles.

    ``indexes`` has, for a stage of images/base, the package index of its PyTorch: PyTorch's own, or a mirror of it.
    """

    base: Annotated[str, Field(pattern=IMAGE_PATTERN)] = "python:3.11-slim-bookworm"
    reference: Name = "cpu"
    indexes: dict[Name, Annotated[str, Field(pattern=r"^(https?|file)://\S+$")]] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class GithubSpec:
    """How GitHub Actions runs the matrix: the hosted runner's labels, a target's limits for waiting and running, and the schedule.

    A job on a hosted runner ends after six hours, and the job that collects results waits for both.
    """

    runs_on: tuple[Annotated[str, Field(max_length=100, pattern=HOSTED_PATTERN)]] = ("ubuntu-24.04",)
    wait_minutes: Annotated[int, Field(gt=0, le=60)] = 30
    timeout_minutes: Annotated[int, Field(gt=0, le=270)] = 180
    python: Annotated[str, Field(pattern=r"^3\.\d+$")] = "3.12"
    schedule: Annotated[str, Field(pattern=CRON_PATTERN)] | None = None


def _adapt(said: Any) -> Any:
    """Convert a boolean: true means the default rule, false means none."""
    return (AdaptRule() if said else None) if isinstance(said, bool) else said


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MatrixSpec:
    """The whole of matrix.yaml. ``adapt`` says what is tried if a cell fails; None (``false``): nothing."""

    version: Literal[1]
    images: ImagesSpec = Field(default_factory=ImagesSpec)
    sizes: dict[Size, SizeSpec]
    measure: MeasureRule = Field(default_factory=MeasureRule)
    adapt: Annotated[AdaptRule | None, pydantic.BeforeValidator(_adapt, json_schema_input_type=bool | AdaptRule)] = Field(
        default_factory=AdaptRule
    )
    tolerances: dict[Dtype, ToleranceSpec]
    targets: Annotated[dict[Name, TargetSpec], Field(min_length=1)]
    models: Annotated[dict[Name, ModelSpec], Field(min_length=1)]
    suites: Annotated[dict[Name, SuiteSpec], Field(min_length=1)]
    expect: tuple[ExpectSpec, ...] = ()
    github: GithubSpec = Field(default_factory=GithubSpec)

    def measure_of(self, suite: str | None) -> MeasureRule:
        """Return the timing rule of a suite: its own ``measure`` over the matrix's. For None or an unknown suite, only the matrix's."""
        named = self.suites.get(suite or "")
        return named.measure.over(self.measure) if named else self.measure


DEFAULTED: Final = frozenset({"sizes", "tolerances", "suites"})
"""Keys that a file need not have: :func:`hwmatrix.matrix.load.load` adds them."""

SPEC_ADAPTER: Final[pydantic.TypeAdapter[MatrixSpec]] = pydantic.TypeAdapter(MatrixSpec)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of matrix.yaml, for editors."""
    schema = SPEC_ADAPTER.json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "hwmatrix/matrix-file/1",
        "title": "hwmatrix matrix.yaml",
        **schema,
        "required": [key for key in schema["required"] if key not in DEFAULTED],
    }
