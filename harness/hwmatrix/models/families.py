"""The family of a model class, as a run needs it: from the same evidence as :mod:`hwmatrix.models.classify`, but without a name.

A machine that plans a run has no transformers. The table alone decides for everything that it lists, so that all machines agree.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Literal

from hwmatrix.errors import FactoryError
from hwmatrix.models.evidence import Known, most_credible, witnesses
from hwmatrix.models.taxonomy import taxonomy
from hwmatrix.records import Family

if TYPE_CHECKING:
    from hwmatrix.models.taxonomy import Taxonomy

Grade = Literal["high", "medium", "low"]
_HIGH: Final = frozenset({"head"})
_MEDIUM: Final = frozenset({"architecture", "mapping", "stem"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class FamilyVerdict:
    """A family, the evidence for it, and how certain it is.

    ``high``: the class is made for one task. ``medium``: the architecture has one use, or transformers lists the class under
    one task. ``low``: the class could belong to several families, and this is the usual one.
    """

    family: Family
    source: str
    confidence: Grade


def family_of(architecture: str, class_name: str, known: Taxonomy | None = None) -> FamilyVerdict:
    """The family of a model class.

    ``architecture`` is a configuration's ``model_type`` (``bert``), ``class_name`` a class of transformers (``BertForMaskedLM``),
    ``known`` a table to use instead of the packaged one.

    Raises:
        FactoryError: the family is not known (``error_type`` is ``family_unknown``).
    """
    known = known or taxonomy()
    best = most_credible(witnesses(Known(model_class=class_name, architecture=architecture), known))
    if best is None or best.subfamily is None:
        families = ", ".join(family.value for family in Family)
        reason = best.source if best else f"the family of {class_name} ({architecture}) is not known"
        raise FactoryError(f"{reason}: give it an entry in matrix.yaml with family: one of {families}", error_type="family_unknown")
    grade: Grade = "high" if best.kind in _HIGH else "medium" if best.kind in _MEDIUM else "low"
    return FamilyVerdict(family=known.family(best.subfamily), source=best.source, confidence=grade)
