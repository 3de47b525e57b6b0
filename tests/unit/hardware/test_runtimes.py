"""OpenVINO's and ONNX Runtime's detection, with fake packages of the same layout and a fake library."""

from __future__ import annotations

import ctypes
import importlib.machinery
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import detector, onnxruntime, openvino, openvino_library
from hwmatrix.records import Backend

if TYPE_CHECKING:
    from pathlib import Path

BUILD = b"2026.4.1-22982-e213a147257-releases/2026/4"
NAMES = {"CPU": b"AMD EPYC 7C13 64-Core Processor                \0", "GPU.0": b"Intel(R) Arc(TM) A770 Graphics (dGPU)\0"}


class Library:
    """A fake of OpenVINO's C library with two devices. ``refused`` names a function that returns an error."""

    def __init__(self, *, refused: str = "", devices: tuple[str, ...] = tuple(NAMES)) -> None:
        self.refused = refused
        self.devices = devices
        self.freed: list[str] = []
        self._kept: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_free"):
            return lambda _value: self.freed.append(name)
        return lambda *arguments: -1 if name == self.refused else self._answer(name, *arguments)

    def _answer(self, name: str, *arguments: Any) -> int:
        """Fill in the caller's structures, and keep the memory that they point to alive."""
        last = arguments[-1]._obj
        if name == "ov_get_openvino_version":
            last.build_number = BUILD
        elif name == "ov_core_create":
            last.value = 1
        elif name == "ov_core_get_available_devices":
            names = (ctypes.c_char_p * len(self.devices))(*(device.encode() for device in self.devices))
            self._kept.append(names)
            last.names, last.size = ctypes.cast(names, ctypes.POINTER(ctypes.c_char_p)), len(self.devices)
        else:
            device, key = arguments[1].decode(), arguments[2]
            values = {b"FULL_DEVICE_NAME": NAMES[device], b"GPU_DEVICE_TOTAL_MEM_SIZE": b"16704737280\0"}
            if key not in values:
                return -1
            self._kept.append(ctypes.create_string_buffer(values[key]))
            last.value = ctypes.addressof(self._kept[-1])
        return 0


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package openvino with its libraries. The C library has the name for this system."""
    folder = tmp_path / "openvino"
    (folder / "libs").mkdir(parents=True)
    (folder / "libs" / "libopenvino_c.so.2641").touch()
    spec = importlib.machinery.ModuleSpec("openvino", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(openvino.util, "find_spec", lambda _name: spec)
    monkeypatch.setattr(sys, "platform", "linux")
    return folder


def answering(monkeypatch: pytest.MonkeyPatch, library: Library) -> Library:
    monkeypatch.setattr(openvino_library.ctypes, "CDLL", lambda _path: library)
    return library


def importing(monkeypatch: pytest.MonkeyPatch, devices: list[str]) -> None:
    class Core:
        available_devices = devices

        def get_property(self, device: str, _name: str) -> str:
            return f"the {device} "

    module = types.ModuleType("openvino")
    module.Core, module.__version__ = Core, "2026.4.1-22982"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openvino", module)


@pytest.mark.usefixtures("package")
def test_the_library_lists_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    library = answering(monkeypatch, Library())
    name, facts = openvino.detect()
    assert name == "OpenVINO 2026.4.1"
    assert facts == {
        "version": BUILD.decode(),
        "devices": {"CPU": "AMD EPYC 7C13 64-Core Processor", "GPU.0": "Intel(R) Arc(TM) A770 Graphics (dGPU)"},
        "device_memory_mb": {"GPU.0": 15930},
    }
    assert sorted(library.freed) == sorted(["ov_version_free", "ov_available_devices_free", "ov_core_free", *(["ov_free"] * 3)])


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("refused", ["ov_get_openvino_version", "ov_core_create", "ov_core_get_available_devices"])
def test_if_the_library_fails_openvino_is_imported(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    library = answering(monkeypatch, Library(refused=refused))
    importing(monkeypatch, ["CPU"])
    assert openvino.detect() == ("OpenVINO 2026.4.1", {"version": "2026.4.1-22982", "devices": {"CPU": "the CPU"}, "device_memory_mb": {}})
    assert ("ov_core_free" in library.freed) == (refused == "ov_core_get_available_devices")


def test_if_the_library_is_missing_or_broken_openvino_is_imported(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, ["CPU"])
    assert openvino.detect()[1]["devices"] == {"CPU": "the CPU"}  # the file is empty, so the loader rejects it
    (package / "libs" / "libopenvino_c.so.2641").unlink()
    assert openvino.detect()[1]["devices"] == {"CPU": "the CPU"}


@pytest.mark.usefixtures("package")
def test_a_runtime_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, Library(devices=()))
    with pytest.raises(UnavailableError, match="lists no device") as caught:
        openvino.detect()
    assert caught.value.error_type == "openvino_device_missing"


@pytest.mark.parametrize(
    ("system", "file"),
    [("linux", "libopenvino_c.so.2641"), ("darwin", "libopenvino_c.2641.dylib"), ("win32", "openvino_c.dll")],
)
def test_the_library_s_name_on_other_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, file: str) -> None:
    (tmp_path / "libs").mkdir()
    for name in ("libopenvino_c.so.2641", "libopenvino_c.2641.dylib", "openvino_c.dll", "libopenvino.so.2641"):
        (tmp_path / "libs" / name).touch()
    monkeypatch.setattr(sys, "platform", system)
    assert openvino_library.find(tmp_path) == tmp_path / "libs" / file


@pytest.mark.parametrize(("module", "package_name"), [(openvino, "openvino"), (onnxruntime, "onnxruntime")])
def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType, package_name: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UnavailableError, match=f"{package_name} is not installed") as caught:
        module.detect()
    assert caught.value.error_type == "missing_package"


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("package_name = 'onnxruntime-gpu'\n__version__ = '1.31.1'\n", "ONNX Runtime 1.31.1", "1.31.1"),
        ("def broken(", "ONNX Runtime", None),
    ],
)
def test_onnx_runtime_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, version: str | None
) -> None:
    """Its distribution has several names, so the version is read from the package itself."""
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "build_and_package_info.py").write_text(text, encoding="ascii")
    spec = importlib.machinery.ModuleSpec("onnxruntime", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(onnxruntime.util, "find_spec", lambda _name: spec)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # its import would fail
    found = detector.detect(Backend.ONNXRUNTIME, light=True)
    assert (found.available, found.name, found.features) == (True, name, {"version": version, "providers": None})
    assert not detector.detect(Backend.ONNXRUNTIME).available
