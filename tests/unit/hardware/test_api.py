"""The public detector and its cache file, on fake machines. Only tests that say so query this machine."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from fake_machine import GPU, Machine, give, installed

import hwmatrix
from hwmatrix.app.environment import read_environment
from hwmatrix.errors import ConfigError, StoreError
from hwmatrix.hardware import api, cache, container
from hwmatrix.hardware.api import CUDA, OPENVINO, QNN, HardwareDetector
from hwmatrix.hardware.browser_places import Found
from hwmatrix.records import Backend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    with installed(monkeypatch, tmp_path / "default") as machine:
        yield machine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kept.json"


def everything() -> list[str]:
    return [kind.value for kind in Backend]


def test_the_public_names() -> None:
    names = ["CPU", "CUDA", "ROCM", "MPS", "OPENVINO", "WEBNN", "WEBGPU", "QNN"]
    assert [getattr(hwmatrix, name) for name in names] == [name.lower() for name in names]
    for name in ("HardwareDetector", "detect_available_hardware", "get_cuda_details", "get_torch_device_with_priority"):
        assert getattr(hwmatrix, name) is getattr(api, name)


def test_nothing_is_queried_before_it_is_needed(machine: Machine, tmp_path: Path) -> None:
    found = HardwareDetector(tmp_path / "no" / "such" / "folder")
    assert machine.take() == []
    assert not found.is_available(CUDA)
    assert machine.take() == ["cuda"]
    assert not found.is_available(CUDA)
    assert machine.take() == []
    assert not (tmp_path / "no").exists()  # missing hardware is not cached


def test_every_kind_is_found_or_says_why(machine: Machine, file: Path) -> None:
    give(machine, Backend.OPENVINO)
    found = HardwareDetector(file)
    assert {hw: each.available for hw, each in found.detect().items()} == {hw: hw in {"cpu", "openvino"} for hw in everything()}
    assert machine.take() == everything()
    assert dict(found.errors()) == {hw: f"no {hw}" for hw in everything() if hw not in {"cpu", "openvino"}}


def test_the_summary(machine: Machine) -> None:
    give(machine, Backend.CUDA, Backend.OPENVINO)
    told = hwmatrix.detect_available_hardware()
    assert set(told) == {"hardware", "details", "errors", "best_available", "torch_device"}
    assert (told["best_available"], told["torch_device"]) == ("cuda", "cuda:0")
    assert told["hardware"]["cuda"]
    assert told["details"]["cuda"]["driver"] == "610.43"
    assert told["details"]["cuda"]["name"] == "a cuda"
    assert told["details"]["rocm"] == {}
    assert told["errors"]["rocm"] == "no rocm"
    assert "cuda" not in told["errors"]
    json.dumps(told)


@pytest.mark.parametrize(
    ("kinds", "best"),
    [((), "cpu"), ((Backend.QNN, Backend.WEBGPU), "cpu"), ((Backend.OPENVINO,), "openvino"), ((Backend.ROCM, Backend.OPENVINO), "rocm")],
)
def test_the_best_is_never_an_emulation_or_a_browser(machine: Machine, kinds: tuple[Backend, ...], best: str) -> None:
    give(machine, *kinds)
    machine.here |= {Backend.ROCM: ("amd", {"gpus": [GPU]})} if Backend.ROCM in kinds else {}
    assert api.detect_available_hardware()["best_available"] == best


def test_a_machine_that_detects_nothing_still_has_its_cpu(machine: Machine) -> None:
    machine.here.clear()
    told = api.detect_available_hardware()
    assert (told["best_available"], told["torch_device"]) == ("cpu", "cpu")


def test_detected_hardware_is_cached_between_processes(machine: Machine, file: Path) -> None:
    give(machine, Backend.OPENVINO, Backend.WEBGPU, Backend.QNN)
    first = HardwareDetector(file).detect()
    machine.take()
    second = HardwareDetector(file).detect()
    assert second[OPENVINO] == first[OPENVINO]
    asked = machine.take()
    assert not {"openvino", "webgpu"} & set(asked)
    assert {"cpu", "cuda", "qnn"} <= set(asked)  # changing facts, missing hardware, and kinds that are fast to detect


def test_only_changing_facts_are_queried_again(machine: Machine, file: Path) -> None:
    give(machine, Backend.CUDA)
    for found in (HardwareDetector(file), HardwareDetector(file)):
        for used in (20, 30):
            machine.used_mb = used
            found.detect()
            machine.take()
            assert found.detect()[CUDA].features["gpus"][0]["used_mb"] == used
            assert sorted(machine.take()) == ["cpu again", "cuda again"]
            assert found.get_cuda_details()["devices"][0]["used_mb"] == used
            assert machine.take() == ["cuda again"]


def test_availability_needs_no_fresh_facts(machine: Machine, file: Path) -> None:
    give(machine, Backend.CUDA)
    HardwareDetector(file).detect()
    machine.take()
    again = HardwareDetector(file)
    assert again.is_available(CUDA)
    assert again.get_torch_device_with_priority([CUDA]) == "cuda:0"
    assert machine.take() == []


def test_removed_hardware_is_noticed(machine: Machine, file: Path) -> None:
    give(machine, Backend.CUDA)
    found = HardwareDetector(file)
    found.detect()
    del machine.here[Backend.CUDA]
    assert not found.detect()[CUDA].available
    assert found.get_cuda_details() | {"reason": None} == {
        "available": False,
        "reason": None,
        "device_count": 0,
        "driver_version": None,
        "cuda_version": None,
        "cudnn_version": None,
        "torch_cuda_version": None,
        "devices": [],
    }
    assert not found.is_available(CUDA)


def test_added_hardware_is_found_by_the_next_process_and_by_a_refresh(machine: Machine, file: Path) -> None:
    found = HardwareDetector(file)
    assert not found.detect()[OPENVINO].available
    give(machine, Backend.OPENVINO)
    assert not found.detect()[OPENVINO].available  # a detector queries only once
    assert HardwareDetector(file).detect()[OPENVINO].available
    assert found.refresh()[OPENVINO].available


@pytest.mark.parametrize(
    "ask", [lambda file: HardwareDetector(file, force_refresh=True).detect(), lambda file: HardwareDetector(file).refresh()]
)
def test_a_refresh_queries_everything_and_writes_the_file(machine: Machine, file: Path, ask: Any) -> None:
    give(machine, Backend.OPENVINO)
    HardwareDetector(file).detect()
    machine.here[Backend.OPENVINO] = ("a newer one", {})
    machine.take()
    assert ask(file)[OPENVINO].name == "a newer one"
    assert machine.take() == everything()
    assert HardwareDetector(file).detect()[OPENVINO].name == "a newer one"


def test_removed_hardware_is_removed_from_the_file(machine: Machine, file: Path) -> None:
    give(machine, Backend.OPENVINO, Backend.CUDA)
    HardwareDetector(file).detect()
    del machine.here[Backend.CUDA]
    assert not HardwareDetector(file).detect()[CUDA].available  # it did not respond to the query of its memory
    assert HardwareDetector(file)._stored().keys() == {OPENVINO}
    del machine.here[Backend.OPENVINO]
    assert HardwareDetector(file).is_available(OPENVINO)  # no sign that it is gone
    assert not HardwareDetector(file, force_refresh=True).is_available(OPENVINO)
    assert not HardwareDetector(file).is_available(OPENVINO)


def test_the_file_can_be_removed(machine: Machine, file: Path) -> None:
    give(machine, Backend.OPENVINO)
    found = HardwareDetector(file)
    found.detect()
    assert found.clear_cache()
    assert not file.exists()
    assert not found.clear_cache()
    machine.take()
    found.detect()
    assert machine.take() == everything()


def test_a_file_that_cannot_be_removed(file: Path) -> None:
    (file / "within").mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be removed"):
        cache.clear(file)


@pytest.mark.parametrize("path", ["folder", "hardware.json", "new/folder/hardware.json"])
def test_a_file_or_a_folder_can_be_given(machine: Machine, tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    give(machine, Backend.OPENVINO)
    HardwareDetector(str(tmp_path / path)).detect()
    assert [each.name for each in tmp_path.rglob("hardware.json")] == ["hardware.json"]


def test_without_a_path_it_is_the_projects_cache_folder(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    give(machine, Backend.OPENVINO)
    HardwareDetector().detect()
    assert (tmp_path / "default" / "hardware.json").is_file()
    for name, value in (("HWMATRIX_CACHE", ""), ("XDG_CACHE_HOME", str(tmp_path / "xdg")), ("XDG_CACHE_HOME", "")):
        monkeypatch.setenv(name, value)
        assert cache.default_file(os.environ) == read_environment().cache / "hardware.json"


def test_without_a_home_folder_nothing_is_cached(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("no home")

    for name in ("HWMATRIX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.Path, "home", home)
    give(machine, Backend.OPENVINO)
    found = HardwareDetector()
    assert found.detect()[OPENVINO].available
    assert not found.clear_cache()


KEPT = {"hardware_type": "openvino", "available": True, "name": "kept", "features": {}, "reason": None, "detected_at": "then"}


def write(file: Path, **changed: Any) -> None:
    content = {"schema": cache.SCHEMA, "key": {"boot": "1", "machine": "m"}, "found": [KEPT]}
    file.write_text(json.dumps(content | changed), encoding="utf-8")


def test_a_valid_file_is_used(file: Path) -> None:
    write(file)
    assert HardwareDetector(file).detect()[OPENVINO].name == "kept"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"schema": "hwmatrix/hardware/0"}, ("INFO", "version 'hwmatrix/hardware/0'")),
        ({"key": {"boot": "2", "machine": "m"}}, ("INFO", "changed since: boot")),
        ({"key": {"boot": "1", "machine": "m", "more": ""}}, ("INFO", "changed since: more")),
        ({"key": []}, ("INFO", "changed since: boot, machine")),
        ({"key": 1}, ("WARNING", "TypeError")),
        ({"found": [{"hardware_type": "openvino"}]}, ("WARNING", "TypeError")),
        ({"found": [{"unknown": 1}]}, ("WARNING", "TypeError")),
        ({"found": ["openvino"]}, ("WARNING", "TypeError")),
        ({"found": [KEPT | {"features": []}]}, ("WARNING", "an entry is not a detection")),
        ({"found": [KEPT | {"available": "yes"}]}, ("WARNING", "an entry is not a detection")),
        ({"found": [KEPT | {"name": None}]}, ("WARNING", "an entry is not a detection")),
        ({"found": [KEPT | {"hardware_type": "tpu"}]}, ("WARNING", "ValueError")),
        ({"found": 5}, ("WARNING", "TypeError")),
    ],
)
def test_an_outdated_file_is_recreated(
    machine: Machine, file: Path, caplog: pytest.LogCaptureFixture, changed: dict[str, Any], told: tuple[str, str]
) -> None:
    write(file, **changed)
    give(machine, Backend.OPENVINO)
    with caplog.at_level(logging.INFO, logger="hwmatrix.hardware.cache"):
        assert HardwareDetector(file).detect()[OPENVINO].name == "a openvino"
    assert [(record.levelname, "will be rebuilt" in record.getMessage()) for record in caplog.records] == [(told[0], True)]
    assert told[1] in caplog.text
    assert json.loads(file.read_text())["found"][0]["name"] == "a openvino"
    assert HardwareDetector(file).detect()[OPENVINO].name == "a openvino"
    assert not list(file.parent.glob("*.bak"))  # it was written by hwmatrix


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"schema": 5}', b'{"other": "program"}', b"my notes"])
def test_a_broken_or_foreign_file_is_renamed_and_recreated(
    machine: Machine, file: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    file.write_bytes(content)
    give(machine, Backend.OPENVINO)
    assert HardwareDetector(file).detect()[OPENVINO].available
    assert "is broken or not hwmatrix's, and will be rebuilt" in caplog.text
    assert json.loads(file.read_text())["schema"] == cache.SCHEMA
    assert [each.read_bytes() for each in file.parent.glob("*.bak")] == [content] * bool(content)


def test_an_unreadable_or_unwritable_place_is_logged_and_not_an_error(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    give(machine, Backend.OPENVINO)
    (tmp_path / "file").write_text("", encoding="ascii")
    assert HardwareDetector(tmp_path / "file" / "hardware.json").detect()[OPENVINO].available
    assert "cannot be written, so hardware is detected again next time" in caplog.text


def test_a_full_disk_leaves_the_old_file(machine: Machine, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, key={"boot": "0"})
    before = file.read_bytes()
    give(machine, Backend.OPENVINO)

    def full(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(file), "replace", full)
    assert HardwareDetector(file).detect()[OPENVINO].available
    assert file.read_bytes() == before
    assert list(file.parent.glob(".kept*")) == []


def test_kinds_that_are_never_cached_are_ignored_in_a_file(machine: Machine, file: Path) -> None:
    absent = {"hardware_type": "cuda", "available": False, "name": "", "reason": "invented"}
    write(file, found=[KEPT | {"hardware_type": "qnn"}, KEPT | absent])
    give(machine, Backend.CUDA)
    found = HardwareDetector(file).detect()
    assert not found[QNN].available
    assert found[CUDA].available


def test_the_key_contains_everything_relevant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    before = cache.current_key()
    assert before == cache.current_key()
    assert len(before["machine"]) == 16
    assert before["hwmatrix"] == hwmatrix.__version__
    monkeypatch.setattr(cache, "_BOOT", tmp_path / "missing")
    monkeypatch.setattr(cache.platform, "release", lambda: "another kernel")
    monkeypatch.setattr(cache, "_PACKAGES", ("pytest", "no-such-package"))
    around = dataclasses.replace(container.look(), nodes=("/dev/nvidia0",), inside="docker: told")
    monkeypatch.setattr(container, "look", lambda: around)
    monkeypatch.setattr(cache.browser_places, "installed", lambda: (Found(name="Chromium", program=__file__, driven=True),))
    after = cache.current_key()
    assert after["boot"].replace(".", "").isdigit()
    assert (after["kernel"], after["nodes"], after["place"]) == ("another kernel", "/dev/nvidia0", "docker: told")
    assert after["packages"] == f"pytest=={pytest.__version__}"
    assert after["browsers"].startswith(f"{__file__}@")


def test_webnn_is_probed_on_demand_and_the_result_cached(machine: Machine, file: Path) -> None:
    """Listing all hardware starts no browser: without a probe WebNN counts as unavailable, whatever browser is installed."""
    give(machine, Backend.WEBGPU, Backend.WEBNN)
    machine.unprobed.add(Backend.WEBNN)
    found = HardwareDetector(file)
    assert found.detect()["webgpu"].available
    assert (found.detect()["webnn"].available, found.detect()["webnn"].reason) == (False, "not probed")
    assert found.choose_hardware(["webnn", "cpu"]).hardware == "cpu"
    assert "webnn" not in machine.take()
    assert found.is_available("webnn")
    assert found.is_available("webnn")
    assert machine.take().count("webnn") == 1
    again = HardwareDetector(file)
    assert again.detect()["webnn"].available
    assert again.choose_hardware(["webnn"], asked_for="webnn").hardware == "webnn"
    assert "webnn" not in machine.take()
    del machine.here[Backend.WEBNN]
    assert not HardwareDetector(file, force_refresh=True).detect()["webnn"].available
    assert machine.take().count("webnn") == 1
    gone = HardwareDetector(file)
    assert not gone.is_available("webnn")
    assert not gone.is_available("webnn")
    assert machine.take().count("webnn") == 1


@pytest.mark.parametrize("name", ["cudda", "", "gpu", "cuda:0"])
def test_an_unknown_name_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a hardware name"):
        HardwareDetector().is_available(name)


def test_the_details_of_cuda(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    give(machine, Backend.CUDA)
    assert api.get_cuda_details() == {
        "available": True,
        "reason": None,
        "device_count": 1,
        "driver_version": "610.43",
        "cuda_version": "13.3",
        "cudnn_version": "9.20.0.48",
        "torch_cuda_version": None,
        "devices": [GPU | {"torch_device": "cuda:0"}],
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert api.get_cuda_details()["devices"][0]["torch_device"] is None


@pytest.mark.parametrize(
    ("other", "environment", "expected"),
    [
        ("B200", {}, ["cuda:0", "cuda:1"]),
        ("B200", {"CUDA_VISIBLE_DEVICES": "1,0"}, ["cuda:1", "cuda:0"]),
        ("B200", {"CUDA_VISIBLE_DEVICES": "GPU-2"}, [None, "cuda:0"]),
        ("T4", {}, [None, None]),  # CUDA puts the fastest first, and it is not known which that is
        ("T4", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["cuda:0", "cuda:1"]),
    ],
)
def test_pytorchs_names_of_gpus(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, other: str, environment: dict[str, str], expected: list[str | None]
) -> None:
    machine.here[Backend.CUDA] = ("two", {"gpus": [GPU, GPU | {"index": 1, "uuid": "GPU-2", "name": other}]})
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert [gpu["torch_device"] for gpu in api.get_cuda_details()["devices"]] == expected


def test_the_functions_share_one_detector(machine: Machine) -> None:
    give(machine, Backend.CUDA)
    assert api.get_torch_device_with_priority(["cuda:0", "cpu"], 3) == "cuda:0"
    api.get_cuda_details()
    assert machine.take() == ["cuda", "cuda again"]
    api.detect_available_hardware(force_refresh=True)
    assert machine.take() == everything()


def test_what_containers_see(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    give(machine, Backend.CUDA)
    around = container.Surroundings(inside=None, nodes=(), toolkit=("nvidia-ctk",), cdi=(), runtimes=())
    monkeypatch.setattr(container, "look", lambda: around)
    views = HardwareDetector().in_container()
    assert views["cuda"] == {"visible": True, "why": "NVIDIA's container toolkit: nvidia-ctk is here"}
    assert not views["mps"]["visible"]
    assert views.keys() == set(everything())


def test_many_threads_query_once(machine: Machine, file: Path) -> None:
    give(machine, Backend.OPENVINO)
    found, start, results = HardwareDetector(file), threading.Barrier(8), []

    def work() -> None:
        start.wait()
        results.append((found.is_available(OPENVINO), found.detect()[OPENVINO].name, found.get_torch_device_with_priority()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(True, "a openvino", "cpu")] * 8
    assert sorted(name for name in machine.take() if "again" not in name) == sorted(everything())


def test_detectors_in_many_threads_write_a_complete_file(machine: Machine, file: Path) -> None:
    give(machine, Backend.OPENVINO, Backend.MPS)
    threads = [threading.Thread(target=lambda: HardwareDetector(file, force_refresh=True).detect()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each["hardware_type"] for each in json.loads(file.read_text())["found"]} == {"openvino", "mps"}
    assert [each.name for each in file.parent.iterdir()] == [file.name]
