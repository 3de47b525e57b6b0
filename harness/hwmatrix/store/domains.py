"""The domains of the database's columns: their SQL types, and which values are valid. A merged database has them as constraints."""

from __future__ import annotations

import enum
import re
from typing import Final

from hwmatrix.records import vocabulary

_EARLIEST: Final = "2020-01-01"
"""Times before this one are of a machine whose clock is not set."""
_LARGEST: Final = 1e100
"""No error or amount is larger: float32 ends at 3e38. Sums and products of such numbers are finite."""
_COLUMN: Final = re.compile(r"^( +)(\w+)( +)([A-Z][a-z]\w+)\b(.*?)(,?)( *--.*)?$", re.MULTILINE)
"""Matches a column of schema.sql whose type is a domain."""


def _words(kind: type[enum.StrEnum]) -> str:
    return ", ".join(f"'{word.value}'" for word in kind)


_VALID: Final[dict[str, tuple[str, str]]] = {
    "Number": ("DOUBLE", f"abs({{0}}) <= {_LARGEST}"),
    "Amount": ("DOUBLE", f"{{0}} BETWEEN 0 AND {_LARGEST}"),
    "Mebibytes": ("DOUBLE", "{0} BETWEEN 0 AND 1e12"),
    "Share": ("DOUBLE", "{0} BETWEEN 0 AND 1"),
    "Count": ("INTEGER", "{0} >= 0"),
    "LargeCount": ("BIGINT", "{0} >= 0"),
    "Time": ("TIMESTAMP", f"{{0}} >= '{_EARLIEST}' AND isfinite({{0}})"),
    "Facts": ("JSON", "json_type({0}) = 'OBJECT'"),
    "Versions": ("JSON", "json_type({0}) = 'OBJECT' AND list_has_all(['VARCHAR'], json_type({0}, '$.*'))"),
    "Texts": ("VARCHAR[]", "list_count({0}) = len({0})"),
    "Counts": ("INTEGER[]", "list_count({0}) = len({0}) AND coalesce(list_min({0}), 0) >= 0"),
    "Amounts": (
        "DOUBLE[]",
        f"list_count({{0}}) = len({{0}}) AND coalesce(list_min({{0}}), 0) >= 0 AND coalesce(list_max({{0}}), 0) <= {_LARGEST}",
    ),
    "Preparations": ("VARCHAR[]", f"list_count({{0}}) = len({{0}}) AND list_has_all([{_words(vocabulary.Preparation)}], {{0}})"),
} | {
    name: ("VARCHAR", f"{{0}} IN ({_words(kind)})")
    for name, kind in vars(vocabulary).items()
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum)
}
"""The SQL type and the condition of each domain; NULL fulfils any condition. NaN is greater than every number, for DuckDB."""


def with_types(tables: str, *, checked: bool) -> str:
    """SQL that creates tables, with each domain replaced by its SQL type, and by a constraint if ``checked``.

    Raises:
        KeyError: there is no such domain.
    """

    def column(found: re.Match[str]) -> str:
        indent, name, space, domain, rest, comma, comment = found.groups()
        kind, condition = _VALID[domain]
        check = f" CHECK ({condition.format(name)})" if checked else ""
        return f"{indent}{name}{space}{kind}{rest}{check}{comma}{comment or ''}"

    return _COLUMN.sub(column, tables)
