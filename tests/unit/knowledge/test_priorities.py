from __future__ import annotations

import pytest

from hwmatrix.errors import ConfigError
from hwmatrix.knowledge.priorities import backend_of, chain_from, order_of, priorities, priority_for, reason_for
from hwmatrix.records import Backend, Classification, Family, Structure


def kind(family: Family | None = None, structure: Structure | None = None) -> Classification:
    return Classification(
        model_name="a model",
        architecture=None,
        model_class=None,
        family=family,
        subfamily=None,
        structure=structure,
        confidence=1.0 if family else 0.0,
        evidence="class" if family else "none",
        source="a test",
    )


TEXT = ("cuda", "rocm", "mps", "cpu")
SPEECH = ("cuda", "rocm", "openvino", "qnn", "mps", "cpu")
LARGE = ("cuda", "rocm", "cpu")


@pytest.mark.parametrize(
    ("classification", "expected"),
    [
        (kind(Family.EMBEDDING, Structure.ENCODER_ONLY), TEXT),
        (kind(Family.TEXT_GENERATION, Structure.DECODER_ONLY), TEXT),
        (kind(Family.TEXT_GENERATION, Structure.ENCODER_DECODER), TEXT),
        (kind(Family.MULTIMODAL, Structure.DIFFUSION), TEXT),
        (kind(Family.VISION, Structure.ENCODER_ONLY), ("cuda", "rocm", "mps", "openvino", "qnn", "cpu")),
        (kind(Family.AUDIO), SPEECH),
        (kind(Family.AUDIO, Structure.SPEECH), SPEECH),
        (kind(None, Structure.SPEECH), SPEECH),
        (kind(Family.TEXT_GENERATION, Structure.MIXTURE_OF_EXPERTS), LARGE),
        (kind(Family.TEXT_GENERATION, Structure.STATE_SPACE), LARGE),
    ],
)
def test_priorities_are_those_of_the_design_documents(classification: Classification, expected: tuple[str, ...]) -> None:
    assert priority_for(classification) == expected
    assert "design documents" in reason_for(classification)


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ("cuda", ("openvino", "cpu")),
        ("mps", ("openvino", "cpu")),
        ("webgpu", ("webnn", "cpu")),
        ("webnn", ("cpu",)),
        ("rocm", ("openvino", "cpu")),
        ("cpu", ()),
    ],
)
def test_chains_are_those_of_the_design_documents(hardware: str, expected: tuple[str, ...]) -> None:
    assert chain_from(hardware) == expected


@pytest.mark.parametrize("family", Family)
def test_every_family_has_a_rule_with_its_source(family: Family) -> None:
    rule = next(rule for rule in priorities().priorities if family in rule.families)
    assert priority_for(kind(family)) == tuple(hardware.value for hardware in rule.hardware)
    assert reason_for(kind(family)) == rule.stands_on


def test_a_model_of_unknown_kind_also_has_an_order() -> None:
    assert priority_for(kind()) == ("cuda", "rocm", "mps", "openvino", "cpu")
    assert "unknown" in reason_for(kind())


def test_the_priority_of_text_overrides_the_chain() -> None:
    assert order_of(kind(Family.TEXT_GENERATION), preferred="cuda") == ("cuda", "rocm", "mps", "cpu")


def test_measurements_override_the_priority() -> None:
    order = order_of(kind(Family.TEXT_GENERATION), preferred="cuda", measured=("openvino", "cpu"))
    assert order == ("cuda", "openvino", "cpu", "rocm", "mps")
    assert order_of(kind(Family.EMBEDDING), measured=("openvino",)) == ("openvino", "cuda", "rocm", "mps", "cpu")


def test_only_hardware_after_the_preferred_one_is_tried() -> None:
    assert order_of(kind(Family.VISION), preferred="openvino") == ("openvino", "qnn", "cpu")
    assert order_of(kind(Family.VISION), preferred="cpu") == ("cpu",)


def test_hardware_that_a_priority_does_not_list_uses_its_chain() -> None:
    assert order_of(kind(Family.VISION), preferred="webgpu") == ("webgpu", "webnn", "cpu")
    assert order_of(kind(Family.TEXT_GENERATION), preferred="openvino") == ("openvino", "cpu")


def test_without_a_kind_the_chain_decides() -> None:
    assert order_of(None, preferred="cuda") == order_of(kind(), preferred="cuda") == ("cuda", "openvino", "cpu")
    assert order_of() == order_of(kind()) == ("cuda", "rocm", "mps", "openvino", "cpu")


@pytest.mark.parametrize("wrong", ["tpu", "", "CUDA", "auto"])
def test_unknown_hardware_is_refused_with_the_known_names(wrong: str) -> None:
    for attempt in (
        lambda: chain_from(wrong),
        lambda: backend_of(wrong),
        lambda: order_of(measured=(wrong,)),
    ):
        with pytest.raises(ConfigError, match=r"is not a hardware name .*allowed: cpu, cuda, executorch, inductor, mps"):
            attempt()


def test_every_order_ends_with_the_cpu_and_every_kind_has_one_rule() -> None:
    table = priorities()
    for order in (table.unknown, *(rule.hardware for rule in table.priorities)):
        assert order[-1] is Backend.CPU
        assert len(set(order)) == len(order)
    for kinds in (
        [kind for rule in table.priorities for kind in rule.structures],
        [kind for rule in table.priorities for kind in rule.families],
    ):
        assert len(set(kinds)) == len(kinds)


def test_every_backend_has_a_chain_that_ends_with_the_cpu() -> None:
    for backend in Backend:
        chain = chain_from(backend.value)
        assert not chain or chain[-1] == "cpu"
        assert backend.value not in chain
