"""The two exception trees, which mean different things.

* :class:`HwmatrixError` ends the program. Each class has its own exit code, and only ``cli.main`` exits.
* :class:`CellFailure` ends a cell. A failing model is data: the runner turns it into a status, and goes on.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class HwmatrixError(Exception):
    """Something that ends the program: what went wrong, and how to fix it.

    ``exit_code`` is unique to each class; 1 is reserved for bugs of hwmatrix.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n{self.advice}" if self.advice else self.message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake in a configuration: where it is, what is wrong, and how to fix it."""

    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.where}: {self.what}{hint}"


class ConfigError(HwmatrixError):
    """matrix.yaml or the arguments are wrong. Carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class NothingSelectedError(HwmatrixError):
    """The arguments are valid, but no cell matches them."""

    exit_code = 3


class CommandError(HwmatrixError):
    """An external command failed. Carries the command, its exit code and the end of what it printed."""

    def __init__(self, message: str, *, command: tuple[str, ...], code: int | None, output: str, advice: str = "") -> None:
        super().__init__(message, advice=advice)
        self.command = command
        self.code = code
        self.output = output

    def __str__(self) -> str:
        tail = "\n".join(self.output.strip().splitlines()[-20:])
        shown = " ".join(self.command)
        code = "" if self.code is None else f" (exit code {self.code})"
        parts = [f"{self.message}{code}", f"command: {shown}", tail, self.advice]
        return "\n".join(part for part in parts if part)


class ImageBuildError(CommandError):
    """An image, or the virtual environment that stands in for it, could not be built."""

    exit_code = 4


class EngineError(HwmatrixError):
    """The container engine is missing, does not answer, or failed while it ran a container."""

    exit_code = 5


class NoTargetAvailableError(HwmatrixError):
    """None of the requested targets can run on this machine."""

    exit_code = 6


class StoreError(HwmatrixError):
    """A shard, a database or another file of hwmatrix is broken, does not belong here, or has another version."""

    exit_code = 7


class GateError(HwmatrixError):
    """A gate found an expectation that does not hold, or a regression."""

    exit_code = 8


class CellFailure(Exception):  # noqa: N818 - not an error of the program: an outcome of a cell
    """A typed outcome of one cell. ``status`` is the value of a ``records.Status``; ``error_type`` names the cause."""

    status: ClassVar[str] = "error"

    def __init__(self, message: str, *, error_type: str) -> None:
        super().__init__(message)
        self.error_type = error_type


class UnsupportedError(CellFailure):
    """The target lacks something that the model needs: ``needs`` names the operators or features."""

    status = "unsupported"

    def __init__(self, message: str, *, needs: tuple[str, ...], error_type: str = "unsupported_operator") -> None:
        super().__init__(message, error_type=error_type)
        self.needs = needs


class UnavailableError(CellFailure):
    """There is no such hardware, driver or runtime on this machine."""

    status = "unavailable"


class FactoryError(CellFailure):
    """The model or its reference could not be made, which is never counted against the hardware."""

    status = "factory_error"


class RefusedError(FactoryError):
    """Loading the model would execute untrusted code (remote code, pickles), which hwmatrix never does."""


class UnmakableError(CellFailure):
    """The model was made, but something that its cell needs from the reference could not be. Never counted against the hardware."""

    status = "factory_error"


class BundleError(CellFailure):
    """A bundle is incomplete, or its files do not have the checksums of its manifest."""

    status = "infra_error"


class TraceError(Exception):
    """The intermediate values of a run are not available: they are too large, or the runtime refuses to return them.

    They are requested after the verdict, which this error does not change.
    """


class TwinError(Exception):
    """A graph with rounded weights cannot be run with these weights as float32 numbers. The cell's row says why."""


class OutOfMemoryError(CellFailure):
    """The cell needed more memory than its limit."""

    status = "oom"


class TimedOutError(CellFailure):
    """Work that the cell needs ran out of time before the cell began."""

    status = "timeout"


class CrashedError(CellFailure):
    """A process that the cell needs, such as a browser, ended while the cell ran."""

    status = "crash"


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, what caused it, and so on; each once, since code may raise an exception from itself."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__
