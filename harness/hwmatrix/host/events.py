"""The runner's events, read line by line. A model shares the runner's output and may print anything, so each line is checked.

Events only show progress: verdicts come from the shard, so a wrong line loses nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import pydantic

from hwmatrix.basics.json_text import read_json
from hwmatrix.basics.text import visible
from hwmatrix.records import Role, Size, Stage, Status

_LONGEST: Final = 20_000
"""Characters of any text; the runner cuts messages to a fraction of it."""
_SHOWN: Final = 200
_Text = Annotated[str, pydantic.StringConstraints(max_length=_LONGEST), pydantic.AfterValidator(lambda text: visible(text, keep="\n\t"))]
_Count = Annotated[int, pydantic.Field(ge=0)]
_Milliseconds = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_MODEL: Final = {"model": _Text, "size": Size}
_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "failed": {"message": _Text},
    "bundle_started": _MODEL,
    "bundle": _MODEL | {"ok": bool, "message": _Text | None},
    "bundle_again": _MODEL | {"message": _Text},
    "cell_started": {"key": _Text, "role": Role},
    "cell": {"key": _Text, "role": Role, "status": Status, "stage": Stage, "p50_ms": _Milliseconds | None, "error": _Text | None},
    "operators": {"done": _Count, "total": _Count, "counts": dict[Status, _Count]},
    "operators_refused": {"message": _Text},
    "survey": {"here": list[_Text], "classified": _Count, "models": _Count},
    **{name: {} for name in ("shard", "parent", "sealed", "export", "operator_tests")},
}
"""The fields of each event that this side reads."""


def _model(name: str, fields: dict[str, Any]) -> type[pydantic.BaseModel]:
    definitions: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    return pydantic.create_model(name, **definitions)


_EVENTS: Final = {name: _model(name, fields) for name, fields in _FIELDS.items()}


class BadEventError(Exception):
    """A line looks like an event and is not a valid one. The text says why."""


def read_event(line: str) -> dict[str, Any] | None:
    """Return the event in a line of the runner's output, or None: libraries print there too.

    Raises:
        BadEventError: the line is an event that no runner sends.
    """
    try:
        data = read_json(line)
    except ValueError:
        return None
    if not isinstance(data, dict) or "event" not in data:
        return None
    name = data["event"]
    if not isinstance(name, str) or name not in _EVENTS:
        raise BadEventError(f"there is no event {ascii(name)[:_SHOWN]}")
    try:
        return {"event": name, **_EVENTS[name].model_validate(data).model_dump()}
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise BadEventError(f"the event {name} is invalid: {visible(at)[:_SHOWN]}: {first['msg'][:_SHOWN]}") from error
