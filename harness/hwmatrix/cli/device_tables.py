"""The tables of ``hwmatrix devices``, and the list of single devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from hwmatrix.cli.tables import show_evidence
from hwmatrix.cli.terminal import safe_text
from hwmatrix.records import Backend, Basis, Execution
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hwmatrix.hardware.api import CudaDetails
    from hwmatrix.records import Detection

_MIB_A_GIB: Final = 1024
_WIDE: Final = 120
"""The width in characters of a table with a column for each kind of hardware."""
Row = dict[str, Any]


def show_summary(answer: Mapping[str, Any]) -> None:
    """Print the available hardware, why other hardware is not available, and which device is chosen."""
    rows = [
        (
            row["hardware"],
            "yes" if row["available"] else "no" if _is_needed(row) else "image",
            row["name"] or "",
            _memory(row["hardware"], row["features"]),
            _versions(row["hardware"], row["features"]),
            "yes" if row["in_container"]["visible"] else "no",
        )
        for row in answer["hardware"]
    ]
    console = Console()
    _print(console, ("hardware", "here", "name", "memory", "versions", "container"), rows)
    missing = [row for row in answer["hardware"] if not row["available"] and _is_needed(row)]
    brought = [row for row in answer["hardware"] if not row["available"] and not _is_needed(row)]
    unseen = [row for row in answer["hardware"] if row["available"] and not row["in_container"]["visible"]]
    _print_reasons(console, "not here:", [(row["hardware"], row["reason"]) for row in missing])
    title = "not installed here, but hwmatrix matrix makes an image or an environment with it:"
    _print_reasons(console, title, [(row["hardware"], row["reason"]) for row in brought])
    _print_reasons(console, "here, but not in a container:", [(row["hardware"], row["in_container"]["why"]) for row in unseen])
    browsers = ", ".join(
        f"{browser['name']} ({browser['program']}{'' if browser['driven'] else '; not supported for WebGPU and WebNN'})"
        for browser in answer["browsers"]
    )
    inside = f"this process is in a container: {answer['inside_container']}" if answer["inside_container"] else ""
    torch = answer["torch"]
    build = f"PyTorch {torch['version']}" if torch else "no PyTorch is installed"
    passed = [f"{hw}: {why}" for hw, why in answer["torch_passed_over"].items() if _is_here(answer, hw)]
    about = "; ".join([build, *passed])
    for line in (
        f"best here: {answer['best_available']}; PyTorch device: {answer['torch_device']} ({about})",
        f"browsers: {browsers or 'none'}",
        inside,
    ):
        if line:
            console.print(safe_text(line))


def show_devices(devices: Sequence[Row]) -> None:
    """Print one device per line."""
    rows = [
        (row["device"], row["name"], _amount(row["memory_mb"]), _amount(row["free_mb"]), row["torch_device"] or "", row["details"])
        for row in devices
    ]
    _print(Console(), ("device", "name", "memory", "free", "PyTorch's name", "details"), rows)


def show_answers(answers: Sequence[Row]) -> None:
    """Print the device for each model; for a single model, also why other devices were not chosen."""
    console = Console()
    columns = ("model", "family", "hardware", "PyTorch device", "order")
    rows = [(row["model"], row["family"] or "not known", row["hardware"], row["torch_device"], " > ".join(row["order"])) for row in answers]
    _print(console, columns, rows)
    if len(answers) == 1:
        (row,) = answers
        console.print(safe_text(f"order: {row['order_reason']}"))
        console.print(safe_text(f"{row['hardware']}: {row['reason']}"))
        _print_reasons(console, "not", row["passed_over"].items())
        others = [(hw, why) for hw, why in row["torch_passed_over"].items() if row["passed_over"].get(hw) != why]
        _print_reasons(console, "and not for PyTorch", others)
    console.print(safe_text("Measurements of a model count more than these orders: hwmatrix classify --model M considers them."))


def show_compatibility(answer: Mapping[str, Any]) -> None:
    """Print families and architectures against hardware: how many models reached each level, or the expectation."""
    columns = [kind.value for kind in Backend if any(row["hardware"][kind.value]["basis"] != Basis.NONE for row in answer["rows"])]
    rows = [
        (f"  {row['architecture']}" if row["architecture"] else row["family"], *(_level(row["hardware"][hw]) for hw in columns))
        for row in answer["rows"]
    ]
    console = Console()
    if not console.is_terminal:  # no window limits the width
        console.width = max(console.width, _WIDE)
    _print(console, ("family", *columns), rows)
    if answer["evidence"]:
        console.print(safe_text("without brackets: measured, the number of models at each level; *: in software or emulated"))
        console.print(safe_text("most models are tiny: for these, High means that they run fully on the hardware, not that they are fast"))
    console.print(safe_text("(in brackets): only expected, by the most cautious expectation"))
    show_evidence(answer["evidence"], console)


def _level(cell: Mapping[str, Any]) -> str:
    """``3 High, 1 none`` if measured, ``(Medium)`` if only expected; JSON has the details."""
    if cell["basis"] == Basis.MEASURED:
        alone = sum(cell["levels"].values()) == 1
        counts = ", ".join(level if alone else f"{count} {level}" for level, count in cell["levels"].items())
        return counts if cell["execution"] in {None, Execution.HARDWARE} else f"{counts}*"
    if cell["basis"] == Basis.NONE:
        return ""
    return f"({cell['level'] or {True: 'works', False: 'none', None: 'unclear'}[cell['compatible']]})"


def devices(found: Mapping[str, Detection], cuda: CudaDetails) -> list[Row]:
    """Every single device. Memory is in MiB; None if a device has no memory of its own or its size is not known."""
    rows: list[Row] = []
    for hw, each in found.items():
        if each.available:
            rows += _DEVICES.get(hw, _single_device)(each, cuda)
    return rows


def _row(device: str, name: str | None, *, details: str = "", memory: Any = None, free: Any = None, torch: str | None = None) -> Row:
    return {"device": device, "name": name or "", "memory_mb": memory, "free_mb": free, "torch_device": torch, "details": details}


def _cpu(each: Detection, _cuda: CudaDetails) -> list[Row]:
    facts = each.features
    details = f"{facts['usable_cores']:g} of {facts['cores']} cores; {', '.join(facts['instructions'] or ())}".rstrip("; ")
    memory = facts["memory_limit_mb"] or facts["memory_mb"]
    return [_row("cpu", each.name, details=details, memory=memory, free=facts["memory_left_mb"], torch="cpu")]


def _gpus_of_cuda(_each: Detection, cuda: CudaDetails) -> list[Row]:
    return [
        _row(
            f"cuda:{gpu['index']}",
            gpu["name"],
            details=f"compute capability {gpu['compute_capability']}, {gpu['processes']} processes",
            memory=gpu["memory_mb"],
            free=gpu["free_mb"],
            torch=gpu["torch_device"],
        )
        for gpu in cuda["devices"]
    ]


def _gpus_of_rocm(each: Detection, _cuda: CudaDetails) -> list[Row]:
    return [
        _row(
            f"rocm:{gpu['index']}",
            gpu["name"] or gpu["architecture"],
            details=f"{gpu['architecture']}, {gpu['compute_units']} compute units",
            memory=gpu["memory_mb"],
            free=gpu["free_mb"],
        )
        for gpu in each.features["gpus"]
    ]


def _of_openvino(each: Detection, _cuda: CudaDetails) -> list[Row]:
    memory = each.features["device_memory_mb"]
    return [_row(f"openvino:{device}", name, memory=memory.get(device)) for device, name in each.features["devices"].items()]


def _mps(each: Detection, _cuda: CudaDetails) -> list[Row]:
    return [_row("mps", each.name, details="memory shared with the processor", memory=each.features["memory_mb"], torch="mps")]


def _browser(each: Detection, _cuda: CudaDetails) -> list[Row]:
    hw, facts = each.hardware_type, each.features
    reason, sizes = facts.get("memory_reason"), facts.get("device_memory_mb", {})
    software = [_row(f"{hw}:software", each.name, details="the browser's software adapter, in the host's memory")] * facts[
        "software_adapter"
    ]
    rows = []
    for node in facts["render_nodes"]:
        details = "a GPU that the browser may use" + ("" if node in sizes or not reason else f"; memory: {reason}")
        rows.append(_row(f"{hw}:{node}", each.name, details=details, memory=sizes.get(node)))
    return software + rows


def _single_device(each: Detection, _cuda: CudaDetails) -> list[Row]:
    parts = (each.features.get("execution"), each.features.get("memory_reason"))
    details = "; memory: ".join(str(part) for part in parts if part)
    return [_row(each.hardware_type, each.name, details=details)]


_DEVICES: Final[dict[str, Callable[[Detection, CudaDetails], list[Row]]]] = {
    Backend.CPU: _cpu,
    Backend.CUDA: _gpus_of_cuda,
    Backend.ROCM: _gpus_of_rocm,
    Backend.MPS: _mps,
    Backend.OPENVINO: _of_openvino,
    Backend.WEBGPU: _browser,
    Backend.WEBNN: _browser,
}


def _memory(hw: str, facts: Mapping[str, Any]) -> str:
    """Free and total memory in GiB, of each GPU if there are any."""
    if hw == Backend.CPU:
        return f"{_part_of(facts['memory_left_mb'], facts['memory_limit_mb'] or facts['memory_mb'])} left"
    gpus = facts.get("gpus")
    if gpus:
        return ", ".join(f"{_part_of(gpu['free_mb'], gpu['memory_mb'])} free" for gpu in gpus)
    own = facts.get("device_memory_mb")
    return ", ".join(f"{name} {_amount(size)}" for name, size in own.items()) if own else _amount(facts.get("memory_mb"))


def _versions(hw: str, facts: Mapping[str, Any]) -> str:
    known = ((label, facts[key]) for label, key in descriptor_of(hw).hardware.versions if facts.get(key) is not None)
    return ", ".join(f"{label} {', '.join(value) if isinstance(value, dict) else value}".strip() for label, value in known)


def _amount(mib: float | None) -> str:
    return "" if mib is None else f"{mib / _MIB_A_GIB:.1f} GiB"


def _part_of(part: float | None, whole: float | None) -> str:
    return f"{_amount(part).removesuffix(' GiB') or '?'} of {_amount(whole) or '?'}"


def _is_needed(row: Mapping[str, Any]) -> bool:
    """Whether this hardware must be part of the machine, since no image can bring it."""
    return descriptor_of(row["hardware"]).hardware.needed_here


def _is_here(answer: Mapping[str, Any], hardware: str) -> bool:
    return any(row["available"] for row in answer["hardware"] if row["hardware"] == hardware)


def _print_reasons(console: Console, title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print the reason for each name, grouping names with the same reason; nothing if there are none."""
    together: dict[str, list[str]] = {}
    for name, reason in pairs:
        together.setdefault(reason, []).append(name)
    if together:
        console.print(title)
        _print_pairs(console, [(", ".join(names), reason) for reason, names in together.items()])


def _print(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold underline")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(safe_text(cell) for cell in row))
    console.print(table)


def _print_pairs(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """Print names with their texts in two columns."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, reason in pairs:
        table.add_row(safe_text(f"  {name}"), safe_text(reason))
    console.print(table)
