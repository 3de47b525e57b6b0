"""``hwmatrix devices``: available hardware, from the cache if it is valid, and the device on which a model would run.

Modules that only some options need are imported where they are used, so that the command starts quickly.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.basics.near_miss import near_miss
from hwmatrix.cli import device_tables as tables
from hwmatrix.cli.options import (
    DEFAULT_MATRIX,
    DEFAULT_OUTPUT,
    Format,
    FormatOption,
    Output,
    OwnMatrix,
    Priority,
    first_models,
    matrix_or_shipped,
)
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.hardware import browser_places, cache, container, torch_build
from hwmatrix.hardware.api import HardwareDetector, best_of, container_views
from hwmatrix.matrix.load import load
from hwmatrix.records import backends

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.records import Classification

_SCHEMA: Final = "hwmatrix/devices/1"
_AUTO: Final = "auto"
Listing = Annotated[bool, typer.Option("--list-devices", help="List every single device (each GPU, each OpenVINO device) with its memory.")]
Compatible = Annotated[bool, typer.Option("--hardware-compatibility", help="Show which families and architectures work on which hardware.")]
ModelName = Annotated[
    str | None, typer.Option("--model", help="Show the device on which this model would run: a name, a hub id, a folder.", metavar="M")
]
Asked = Annotated[
    str, typer.Option("--device", help="With --model or --priority: the hardware to run on, a backend's name, or auto.", metavar="D")
]
Priorities = Annotated[Priority | None, typer.Option("--priority", help="The same for models of matrix.yaml: high means its first suite.")]
Refresh = Annotated[bool, typer.Option("--refresh", help="Ignore the cache and detect everything again.")]
Clear = Annotated[bool, typer.Option("--clear-cache", help="Only delete the cache.")]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("devices")(devices_command)


def devices_command(
    *,
    list_devices: Listing = False,
    hardware_compatibility: Compatible = False,
    model: ModelName = None,
    priority: Priorities = None,
    device: Asked = _AUTO,
    refresh: Refresh = False,
    clear_cache: Clear = False,
    matrix: OwnMatrix = DEFAULT_MATRIX,
    output_dir: Output = DEFAULT_OUTPUT,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the available hardware, what a container sees of it, and on which device a model would run.

    Runtimes are not imported or started, only their files are checked; hwmatrix detect starts them. Examples:

        hwmatrix devices

        hwmatrix devices --list-devices

        hwmatrix devices --model google/vit-base-patch16-224 --device auto

        hwmatrix devices --priority high --device cuda --format json
    """
    modes = {
        "--list-devices": list_devices,
        "--hardware-compatibility": hardware_compatibility,
        "--model": model is not None,
        "--priority": priority is not None,
        "--clear-cache": clear_cache,
    }
    _check(modes, device)
    detector = HardwareDetector(read_environment().cache / cache.NAME, force_refresh=refresh)
    if clear_cache:
        echo("cache deleted" if detector.clear_cache() else "there was no cache")
    elif list_devices:
        _print(tables.devices(detector.detect(), detector.get_cuda_details()), output, tables.show_devices)
    elif hardware_compatibility:
        _compatibility(output_dir, output)
    elif model is not None or priority is not None:
        names = [model] if model is not None else first_models(load(matrix_or_shipped(matrix)).spec, priority)
        answers = [_device_for(name, device, detector, matrix) for name in names]
        _print(answers[0] if model is not None else answers, output, lambda _: tables.show_answers(answers))
    else:
        _print(_summary(detector), output, tables.show_summary)


def _check(modes: dict[str, bool], device: str) -> None:
    """Check that the options belong together.

    Raises:
        ConfigError: options exclude each other, a device is named without a model, or no model can be placed on it.
    """
    asked = [name for name, given in modes.items() if given]
    if len(asked) > 1:
        raise ConfigError([Problem(where=asked[1], what=f"it cannot be used together with {asked[0]}", hint="use one at a time")])
    if device == _AUTO:
        return
    if not {"--model", "--priority"} & set(asked):
        hint = "name one with --model, or several with --priority"
        raise ConfigError([Problem(where=f"--device {device}", what="it needs a model", hint=hint)])
    own = [_AUTO, *backends.TABLE]
    if device in own:
        return
    if device in backends.names():
        what, hint = f"{device!r} is a backend of another package, in no order of hardware", "name it as a target in matrix.yaml"
    else:
        what, hint = f"{device!r} is not a hardware name", near_miss(device, own)
    raise ConfigError([Problem(where="--device", what=what, hint=hint)])


def _print(answer: Any, output: Format, show: Any) -> None:
    if output is Format.JSON:
        echo(json.dumps(answer, indent=2))
    else:
        show(answer)


def _summary(detector: HardwareDetector) -> dict[str, Any]:
    """Everything in one answer; the keys are described in docs/hardware.md."""
    found, around = detector.detect(), container.look()
    views = container_views(found, around)
    choice, build = detector.choose_torch_device(), torch_build.torch_build()
    return {
        "schema": _SCHEMA,
        "hardware": [
            {
                "hardware": hw,
                "available": each.available,
                "name": each.name,
                "features": each.features,
                "reason": each.reason,
                "detected_at": each.detected_at,
                "in_container": views[hw],
            }
            for hw, each in found.items()
        ],
        "browsers": [dataclasses.asdict(browser) for browser in browser_places.installed()],
        "best_available": best_of(found),
        "torch": None if build is None else {"version": build.version, "cuda": build.cuda, "hip": build.hip},
        "torch_device": choice.torch_device,
        "torch_device_reason": choice.reason,
        "torch_passed_over": dict(choice.passed_over),
        "inside_container": around.inside,
        "for_containers": {
            "device_nodes": list(around.nodes),
            "toolkit": list(around.toolkit),
            "cdi": list(around.cdi),
            "docker_runtimes": list(around.runtimes),
        },
    }


def _compatibility(output_dir: Path, output: Format) -> None:
    from hwmatrix.knowledge.compatibility_table import table_of
    from hwmatrix.knowledge.on_record import Place, on_record

    found = on_record(latest=output_dir)
    own = next((source.measurements.where for source in found.sources if source.place is Place.LATEST), None)
    answer = {"database": own, "evidence": found.answer(), "rows": [row.as_dict() for row in table_of(found)]}
    _print(answer, output, tables.show_compatibility)


def _device_for(name: str, device: str, detector: HardwareDetector, matrix: Path) -> dict[str, Any]:
    """The hardware and PyTorch's device for a model.

    ``auto`` follows the priorities of the model's kind; a requested device comes first, and then the hardware that ``hwmatrix test``
    and the resource pool would try: the rest of those priorities, or the device's fallback chain if they lack the device.
    """
    from hwmatrix.knowledge.priorities import order_of, priority_for, reason_for

    kind = _classification_of(name, matrix)
    if device == _AUTO:
        order, reason = priority_for(kind), reason_for(kind)
    else:
        order, reason = order_of(kind, preferred=device), reason_for(kind, preferred=device)
    chosen = detector.choose_hardware(order, asked_for=None if device == _AUTO else device)
    torch = detector.choose_torch_device(order)
    return {
        "model": name,
        "architecture": kind.architecture,
        "family": kind.family.value if kind.family else None,
        "confidence": kind.confidence,
        "asked": device,
        "order": list(order),
        "order_reason": reason,
        "hardware": chosen.hardware,
        "reason": chosen.reason,
        "passed_over": dict(chosen.passed_over),
        "torch_device": torch.torch_device,
        "torch_device_reason": torch.reason,
        "torch_passed_over": dict(torch.passed_over),
    }


def _classification_of(name: str, matrix: Path) -> Classification:
    """The model's classification: from its entry or its files if the name refers to one, else from the name."""
    from hwmatrix.knowledge.names import look_up
    from hwmatrix.models.classify import classify

    spec = load(matrix).spec if matrix.is_file() or matrix != DEFAULT_MATRIX else None
    plan = look_up(name, spec=spec, cache=read_environment().cache)
    if plan is None:
        return classify(name)
    return classify(plan.name, model_class=plan.model_class, architecture=plan.architecture, config=plan.config or None)
