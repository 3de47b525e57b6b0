"""Names in OpenVINO's graphs. The ports are fake and need no OpenVINO."""

from __future__ import annotations

import pytest

from hwmatrix.models.openvino_graph import name_of


class Port:
    def __init__(self, *names: str) -> None:
        self._names = set(names)

    def get_names(self) -> set[str]:
        return self._names


@pytest.mark.parametrize(
    ("names", "expected"), [(("12", "output.logits", "x"), "output.logits"), (("b", "a"), "a"), (("3", "input.mask"), "input.mask")]
)
def test_the_exporter_s_name_is_chosen(names: tuple[str, ...], expected: str) -> None:
    assert name_of(Port(*names)) == expected
