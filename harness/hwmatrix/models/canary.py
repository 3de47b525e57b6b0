"""The two canary models, which show whether the results of a shard are valid.

One must pass. The other's expected outputs come from other weights than the bundle has, so a target that really runs the model and
really compares must report ``mismatch``. If a target reports anything else, its results for other models prove nothing.
"""

from __future__ import annotations

from typing import Final

from hwmatrix.records import Family, ModelPlan, Role, Size

GOOD: Final = "canary-good"
WRONG: Final = "canary-wrong"


def canary_plans() -> tuple[ModelPlan, ModelPlan]:
    """The canary that must pass and the one that must fail: the same tiny BERT with 30,000 parameters."""
    return _plan(GOOD, Role.CANARY_GOOD), _plan(WRONG, Role.CANARY_WRONG)


def _plan(name: str, role: Role) -> ModelPlan:
    return ModelPlan(
        name=name,
        size=Size.TINY,
        family=Family.EMBEDDING,
        architecture="bert",
        model_class="BertForMaskedLM",
        config={
            "vocab_size": 256,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "initializer_range": 0.1,
        },
        role=role,
    )
