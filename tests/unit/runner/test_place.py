"""The places where a model is tested: their names, the requests to the pool, and when a place is unavailable."""

from __future__ import annotations

from typing import Any

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.records import Dtype
from hwmatrix.runner import place as module
from hwmatrix.runner.place import Place


class FakeTarget:
    """An available target."""

    def check(self) -> str:
        return "a device"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "target", lambda _self: FakeTarget())


@pytest.mark.parametrize(
    ("place", "name", "torch_name", "wanted"),
    [
        (Place(device="cpu"), "cpu-float32", "cpu", "cpu"),
        (Place(device="cuda", dtype=Dtype.FLOAT16, options={"device": 1}), "cuda-float16", "cuda", "cuda:1"),
        (Place(device="rocm"), "rocm-float32", "cuda", "rocm:0"),
        (Place(device="mps"), "mps-float32", "mps", "mps"),
        (Place(device="openvino", options={"device": "GPU"}), "openvino-float32", "openvino", "openvino"),
    ],
)
def test_a_place_has_names_for_hwmatrix_torch_and_the_pool(place: Place, name: str, torch_name: str, wanted: str) -> None:
    assert (str(place), place.torch_name, place.preferences) == (name, torch_name, {"device": wanted})
    assert place.is_torch is (place.device != "openvino")


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(("needed", "free"), [(None, 1), (100, 100), (100, None)])
def test_a_place_with_enough_memory_is_available(monkeypatch: pytest.MonkeyPatch, needed: int | None, free: int | None) -> None:
    monkeypatch.setattr(module, "available_memory_mb", lambda _backend: free)
    assert Place(device="cpu", memory_mb=needed).check() == "a device"


@pytest.mark.usefixtures("there")
def test_a_place_without_enough_memory_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory_mb", lambda _backend: 99)
    with pytest.raises(UnavailableError, match="the model needs 100 MiB on cuda, but only 99 MiB are free") as caught:
        Place(device="cuda", memory_mb=100).check()
    assert caught.value.error_type == "memory_pressure"


def test_a_place_without_the_hardware_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __init__(self, **_: Any) -> None:
            pass

        def check(self) -> str:
            raise UnavailableError("no such card", error_type="gpu_not_found")

    monkeypatch.setattr(module, "target_class", lambda _backend: Missing)
    with pytest.raises(UnavailableError, match="no such card"):
        Place(device="cuda").check()
