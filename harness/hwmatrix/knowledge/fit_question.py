"""The validated arguments of ``hwmatrix fit``, and the model that its name refers to."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.knowledge.measured_choice import Bounds
from hwmatrix.knowledge.names import DEFAULT_MATRIX, KnownModel, is_folder, known_model, look_up
from hwmatrix.matrix.load import load
from hwmatrix.models.build import HUB, RECIPE
from hwmatrix.models.listed_sizes import listed_sizes
from hwmatrix.models.names import check_name, is_name
from hwmatrix.models.types import is_type
from hwmatrix.records import Backend, Dtype
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.knowledge.on_record import OnRecord

_PROPOSED: Final = 8
_WORD: Final = 3
"""Letters and digits of the shortest word by which names are proposed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitQuestion:
    """A model and its settings, as the user gave them; None: the default of the model, the hardware or this machine.

    Empty ``hardware`` means the hardware of this machine and the usual hardware for such models. ``memory_mb`` is in MiB.
    ``max_loss`` and ``max_latency_ms`` limit the measured cells among which the best is chosen.
    """

    model: str
    hardware: tuple[str, ...] = ()
    memory_mb: int | None = None
    batch: int | None = None
    sequence_length: int | None = None
    dtype: Dtype | None = None
    max_loss: float | None = None
    max_latency_ms: float | None = None

    @property
    def bounds(self) -> Bounds:
        """The limits for a choice among measured cells."""
        return Bounds(memory_mb=self.memory_mb, loss=self.max_loss, latency_ms=self.max_latency_ms)

    def check(self) -> tuple[Backend, ...]:
        """The requested hardware, each once.

        Raises:
            ConfigError: unknown hardware, numbers below 1, or a precision that the hardware does not have; lists every problem.
        """
        backends = [backend.value for backend in Backend]
        problems = [
            Problem(where="--hw", what=f"{name!r} is not a hardware name", hint=near_miss(name, backends))
            for name in self.hardware
            if name not in backends
        ]
        problems += [
            Problem(where=option, what=f"{value} is not a valid {meaning}", hint="give 1 or more")
            for option, value, meaning in (
                ("--batch", self.batch, "number of samples"),
                ("--sequence-length", self.sequence_length, "number of tokens"),
            )
            if value is not None and value < 1
        ]
        problems += self.bounds.problems()
        if problems:
            raise ConfigError(problems)
        wanted = tuple(dict.fromkeys(Backend(name) for name in self.hardware))
        if self.dtype is not None:
            problems = [self._unsupported(backend) for backend in wanted if self.dtype not in descriptor_of(backend).precisions]
        if problems:
            raise ConfigError(problems)
        return wanted

    def _unsupported(self, backend: Backend) -> Problem:
        has = ", ".join(dtype.value for dtype in descriptor_of(backend).precisions)
        what = f"{backend.value} does not compute in {self.dtype.value if self.dtype else 'it'}"
        return Problem(where="--dtype", what=what, hint=f"it has {has}: name one of them, or other hardware")


def subject_of(question: FitQuestion, found: OnRecord, cache: Path | None = None) -> KnownModel:
    """The model that a name refers to, with the requested settings.

    It is looked up in matrix.yaml, as a checkpoint, and then as in :func:`~hwmatrix.knowledge.names.known_model`.

    Raises:
        ConfigError: only the name is known, which does not determine its size.
    """

    def find(name: str) -> KnownModel | None:
        """The model of a name, in all places."""
        return (_looked_up(name, cache) if is_name(name) or is_folder(name) else None) or known_model(name, found)

    subject = find(question.model)
    if subject is None:
        raise ConfigError([_unknown(question.model, found.memory, accepted=lambda name: find(name) is not None)])
    plan = subject.plan
    batch, length = question.batch or plan.batch, question.sequence_length or plan.sequence_length
    return dataclasses.replace(subject, plan=dataclasses.replace(plan, batch=batch, sequence_length=length))


def _looked_up(name: str, cache: Path | None) -> KnownModel | None:
    plan = look_up(name, cache=cache)
    if plan is None:
        return None
    source = {RECIPE: str(DEFAULT_MATRIX), HUB: "the hub's cache"}.get(plan.weights, f"the checkpoint {plan.weights}")
    return KnownModel(plan=plan, known_from=source)


def _unknown(name: str, found: Iterable[Evidence], *, accepted: Callable[[str], bool]) -> Problem:
    """The error about a name that means no model. Only names that would be accepted are proposed: similar ones, or those with its words."""
    models = {each for cell in found for each in (cell.model, cell.hub_id)}
    models |= {each for size in listed_sizes() for each in (size.model, size.hub_id)}
    if DEFAULT_MATRIX.is_file():
        models |= set(load(DEFAULT_MATRIX).spec.models)
    options = sorted(model for model in models if model is not None and model.isprintable())
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if len(word) >= _WORD]
    shared = {model: sum(word in model.lower() for word in words) for model in options}
    with_words = sorted((model for model in options if shared[model]), key=lambda model: (-shared[model], len(model)))
    close = [*difflib.get_close_matches(name, options, n=_PROPOSED, cutoff=0.5), *with_words[:_PROPOSED]]
    proposed = [model for model in dict.fromkeys(close) if accepted(model)][:_PROPOSED]
    if not proposed and not is_name(name):
        check_name(name)  # raises, with what is wrong about it
    near = f"did you mean {', '.join(proposed)}? " if proposed else ""
    how = "give it an entry in matrix.yaml, name its checkpoint's folder, or a --database in which it was measured"
    if is_type(name):
        what = f"{name!r} is a type of transformers, which has models of many sizes"
        return Problem(where="MODEL", what=what, hint=how)
    return Problem(where="MODEL", what=f"{name!r} is only a name, and its size cannot be guessed from that", hint=f"{near}{how}")
