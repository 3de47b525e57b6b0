"""Output names, without torch: any object with a shape counts as a tensor."""

from __future__ import annotations

from typing import Any

import pytest

from hwmatrix.models.outputs import call_options, flatten_outputs


class Tensor:
    shape = (1,)


def test_nested_outputs_get_dotted_names() -> None:
    output = {
        "logits": Tensor(),
        "loss": Tensor(),
        "past_key_values": object(),
        "nothing": None,
        "hidden_states": (Tensor(), Tensor()),
        "vision_model_output": {"pooler_output": Tensor(), "attentions": None},
        "projection_attentions": Tensor(),  # only eager attention returns its weights
    }
    assert list(flatten_outputs(output)) == ["logits", "hidden_states.0", "hidden_states.1", "vision_model_output.pooler_output"]


def test_a_bare_tensor_is_called_output() -> None:
    assert list(flatten_outputs(Tensor())) == ["output"]


def test_layer_numbers_next_to_features_are_no_outputs() -> None:
    output = {"deepstack_features": [(0, [Tensor()]), (1, [Tensor()])]}
    assert list(flatten_outputs(output)) == ["deepstack_features.0.1.0", "deepstack_features.1.1.0"]


def test_an_output_that_is_not_a_tensor_is_named() -> None:
    with pytest.raises(TypeError, match=r"extra\.0 is a str"):
        flatten_outputs({"extra": ["text"]})


def test_only_supported_options_are_passed() -> None:
    class Plain:
        config = None

        def forward(self, pixel_values: Any) -> Any:
            return pixel_values

    class Causal:
        config = None

        def forward(self, input_ids: Any, use_cache: Any = None, **options: Any) -> Any:
            return input_ids, use_cache, options

    assert call_options(Plain()) == {}  # type: ignore[arg-type]
    assert call_options(Causal()) == {"return_dict": True, "use_cache": False}  # type: ignore[arg-type]


@pytest.mark.parametrize(("fields", "options"), [({}, {"use_cache": False}), ({"use_streaming": False}, {})])
def test_a_streaming_codec_gets_no_use_cache_option(fields: dict[str, bool], options: dict[str, bool]) -> None:
    class Config:
        def __init__(self) -> None:
            self.use_cache = False
            vars(self).update(fields)

    class Codec:
        config = Config()

        def forward(self, input_values: Any, **kwargs: Any) -> None: ...

    assert call_options(Codec()) == {"return_dict": True, **options}  # type: ignore[arg-type]
