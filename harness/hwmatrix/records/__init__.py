"""The vocabulary: closed enums and the frozen records that are passed between the parts.

The three wings (runner, host, report) never import each other. They exchange files, which contain the records defined here.
"""

from hwmatrix.records.adaptations import Adaptation, AdaptRule, Change, in_words
from hwmatrix.records.files import from_json, plan_from_json, to_json
from hwmatrix.records.knowledge import Basis, Classification, Requirements, SizeTier, Structure
from hwmatrix.records.measured import Column, Measured, measured_columns
from hwmatrix.records.operators import OperatorResult
from hwmatrix.records.plans import (
    BUNDLE_SCHEMA,
    PLAN_SCHEMA,
    TYPE_PREFIX,
    Axes,
    CellPlan,
    Limits,
    MeasureRule,
    ModelKey,
    ModelPlan,
    Plan,
    Settings,
    TargetPlan,
    Tolerance,
    cell_command,
    key_of_entry,
)
from hwmatrix.records.results import CellResult, Detection, Divergence, ErrorRecord, Findings, NoiseFloor, OutputRecord, Parity, Placement
from hwmatrix.records.vocabulary import Backend, Dtype, Execution, Family, Isolation, Level, Origin, Role, Severity, Size, Stage, Status

__all__ = [
    "BUNDLE_SCHEMA",
    "PLAN_SCHEMA",
    "TYPE_PREFIX",
    "AdaptRule",
    "Adaptation",
    "Axes",
    "Backend",
    "Basis",
    "CellPlan",
    "CellResult",
    "Change",
    "Classification",
    "Column",
    "Detection",
    "Divergence",
    "Dtype",
    "ErrorRecord",
    "Execution",
    "Family",
    "Findings",
    "Isolation",
    "Level",
    "Limits",
    "MeasureRule",
    "Measured",
    "ModelKey",
    "ModelPlan",
    "NoiseFloor",
    "OperatorResult",
    "Origin",
    "OutputRecord",
    "Parity",
    "Placement",
    "Plan",
    "Requirements",
    "Role",
    "Settings",
    "Severity",
    "Size",
    "SizeTier",
    "Stage",
    "Status",
    "Structure",
    "TargetPlan",
    "Tolerance",
    "cell_command",
    "from_json",
    "in_words",
    "key_of_entry",
    "measured_columns",
    "plan_from_json",
    "to_json",
]
