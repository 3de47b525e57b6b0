"""Where a wrong result begins in real models: the two whose attention means something else than the reference's on the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hwmatrix.measure.divergence import locate
from hwmatrix.measure.parity import compare
from hwmatrix.models import bundle
from hwmatrix.models.types import model_types
from hwmatrix.records import Dtype, ModelPlan, Origin, Settings, Size

torch = pytest.importorskip("torch")

from hwmatrix.targets.torch.cpu import TorchCpu  # noqa: E402 - needs torch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch
TOLERANCE = 1e-4


@pytest.mark.parametrize(
    ("name", "at", "operator"),
    [
        ("aimv2", "text_model.encoder.layers.0.attention", "Aimv2Attention"),
        (
            "phi4_multimodal",
            "model.embed_tokens_extend.image_embed.img_processor.encoder.layers.0.self_attn",
            "Phi4MultimodalVisionAttention",
        ),
    ],
)
def test_attention_that_means_something_else_is_found(tmp_path: Path, name: str, at: str, operator: str) -> None:
    kind = next(each for each in model_types() if each.name == name)
    plan = ModelPlan(name=name, size=Size.TINY, family=kind.family, architecture=name, model_class=kind.model_class, weights="factory")
    built = bundle.find_or_build(plan, tmp_path)
    expected = built.expected_arrays()
    target = TorchCpu(settings=Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=16, threads=torch.get_num_threads()), options={})
    target.load(built)
    target.prepare(built.input_arrays())
    worst = compare(target.outputs(target.run()), expected).worst
    assert worst is not None
    assert worst.relative_error > TOLERANCE

    found = locate(target.trace(built), expected, TOLERANCE)
    assert (found.origin, found.at, found.operator) == (Origin.STEP, at, operator)
    assert found.inputs_error is not None
    assert found.inputs_error < TOLERANCE
    assert found.against == "the same layers in float32 on the CPU, with eager attention"
