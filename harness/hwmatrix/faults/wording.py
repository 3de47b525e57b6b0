"""An error's message and source line without model-specific parts: numbers, shapes, addresses, paths and names.

Two errors with the same normalized message and the same place most likely need the same fix.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST: Final = 200
"""The maximum length of a normalized message, in characters. The rest of a message repeats it, or is a log."""
_SEARCHED: Final = 200_000
"""How many characters of a traceback or a message are read: a log may be of any length."""
_SHORTEST_NAME: Final = 3

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEADER_LINE: Final = re.compile(
    r"^(Check '.*' failed at \S+|Exception from \S+|Exception|Traceback .*|Failed to export the model .*|Summary|Caused by|[-=*#\s]*)[:.]?$"
)
"""Header lines. Runtimes print one or two of them before the actual error."""
_REPLACEMENTS: Final = (
    # If several exporters failed, the message of the first one counts.
    (r"^no exporter made an (?:ONNX|OpenVINO) graph of this model: [\w-]+: (.*?)(?:; \w+: [\w.]+: .*)?$", r"\1"),
    (r"\b(?:\w+\.)+(\w+(?:Error|Exception|Failure|Node))\b(?=:)", r"\1"),
    (r"\b(\w+): (?=\1: )", ""),
    # torch.onnx names the step that failed, and gives the reason at the end.
    (r"^(?:ConversionError|TorchExportError): Failed to .*; caused by (?=\w+: )", ""),
    (r"https?://\S+", "<link>"),
    (r"\b(data-dependent expression) .*", r"\1 <expression>"),
    (r"<class '[\w.]*?(\w+)'>", r"\1"),
    (r"\b0x[0-9a-fA-F]+\b", "<address>"),
    (r"(?:[A-Za-z]:|\b[\w.-]+)?(?:[\\/][\w.@+~-]+){2,}(?::\d+)?", "<path>"),
    (r"\b[\w./-]+\.(?:py|cc|cpp|hpp|h|cu):\d+\b", "<path>"),
    (r"torch\.Size\(\[[^\]]*\]\)", "<shape>"),
    (r"[\[({]\s*-?[\d?*.]+(?:\s*[,x:]\s*-?[\d?*.]*)+\s*[\])}]", "<shape>"),
    (r"\b\d+(?:x\d+)+\b", "<shape>"),
    (r"\[\s*-?\d*\s*\]", "<shape>"),
    # A quoted name with digits, dots, colons or slashes is a tensor's or a node's; 'bbox' is an argument's, and stays.
    (r"(['\"`])(?!aten[.:]|prims[.:]|torchvision[.:])(?=[^'\"`\s]*[\d/.:])[\w./:<>-]+\1", "<name>"),
    (r"\bof \S+ exceeds\b", "of <name> exceeds"),
    (r"\b(?:[A-Za-z]\w*[./])+\d+(?:[./]\w+)*\b|\b[A-Za-z]\w*_\d+\b|\b[us]\d+\b", "<name>"),
    (r"\b[A-Z]\w+(?:For[A-Z]\w+|Model|Config|Encoder|Decoder|Attention|Layer|Block|Embeddings|MLP|Backbone|Processor)\b", "<class>"),
    (r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)*(?:e[+-]?\d+)?(?![\w])", "<n>"),
    (r"\b\d+(?:\.\d+)?(?=(?:[KMGT]i?B|ms|s)\b)", "<n>"),
)
_RULES: Final = tuple((re.compile(pattern), to) for pattern, to in _REPLACEMENTS)
_REPEATED: Final = re.compile(r"(<\w+>)(?:\s*(?:,|and)?\s*\1)+")

_FRAME: Final = re.compile(
    r'File "[^"\n]*[/\\](?:site|dist)-packages[/\\](?P<inside>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)'
    r'(?:\n[ |]{4,}(?! *(?:File "|[~^]+ *$))(?P<code>[^\n]+))?',
    re.MULTILINE,
)
"""A frame in an installed package. Other frames are the caller's code, where no library can be fixed."""
_CAUSED_BY: Final = re.compile(r"\((?P<inside>transformers/[\w./-]+\.py):(?P<line>\d+) in (?P<function>[\w<>]+)\)")
"""A frame as torch.export writes it into a message."""
_BECAUSE: Final = re.compile(r"^The above exception was the direct cause", re.MULTILINE)
_MEANWHILE: Final = re.compile(r"^During handling of the above exception", re.MULTILINE)
_EXPORTER: Final = re.compile(r"^The exporter by \w+ failed:$", re.MULTILINE)
"""The line before each exporter's traceback if none made a graph (``models/onnx_export.no_graph``)."""
_OURS: Final = "hwmatrix/"
_TRANSFORMERS: Final = "transformers/"
_MODEL_FILE: Final = re.compile(r"^models/[^/]+/(?P<kind>[a-z]+)_\w+\.py$")
_WRAPPERS: Final = ("transformers/utils/", "transformers/modeling_layers.py", "transformers/exporters/")
"""Files of transformers that only wrap calls of a model's own code."""
_LONGEST_CODE: Final = 120


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Frame:
    """A frame in a package, from a traceback or a message. ``code`` is the line's text, if given."""

    inside: str
    function: str
    line: int
    code: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """Where an error was raised. ``file`` is relative to transformers for its own code, else it begins with the package's name.

    ``code`` is the text of the line (the first line of a longer statement), None if no traceback has it. ``construct`` is the same for
    models with copied code: ``models/*/modeling_*.py::get_rope_index: for t, h, w in grid.tolist():``.
    """

    file: str
    function: str
    transformers: bool
    line: int
    code: str | None

    def __str__(self) -> str:
        """``models/bert/modeling_bert.py::forward``."""
        return f"{self.file}::{self.function}"

    @property
    def construct(self) -> str:
        """The place without the model's name, and the line's text."""
        found = _MODEL_FILE.match(self.file)
        place = f"models/*/{found['kind']}_*.py::{self.function}" if found else str(self)
        return f"{place}: {self.code}" if self.code else place

    @property
    def exact(self) -> str:
        """``models/bert/modeling_bert.py:549 in forward``."""
        return f"{self.file}:{self.line} in {self.function}"


def normalized(message: str, names: Iterable[str] = ()) -> str:
    """The first informative line of a message, with placeholders such as ``<n>``, ``<shape>`` and ``<name>`` for the variable parts.

    Args:
        message: the whole message.
        names: the names of the model and its architecture, which become ``<model>``.
    """
    text = _COLOURS.sub("", message[:_SEARCHED])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((each for each in lines if not _HEADER_LINE.match(each)), lines[0] if lines else "")
    at = lines.index(line) if line else 0
    if line.endswith(":") and at + 1 < len(lines):
        line = f"{line} {lines[at + 1]}"
    for name in sorted({name for name in names if len(name) >= _SHORTEST_NAME}, key=len, reverse=True):
        line = re.sub(rf"(?<![\w:.-]){re.escape(name)}(?![\w-])", "<model>", line)
    for pattern, to in _RULES:
        line = pattern.sub(to, line)
    line = _REPEATED.sub(r"\1", line)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1].rstrip()}…"


def site_of(traceback: str | None) -> Site | None:
    """Where the error of a traceback was raised: the deepest frame in transformers, else the deepest one in another package, else None.

    In a chain of causes, the first error counts. If the error was raised while another one was handled, the other one counts only if
    the error itself has no such frame. Frames of hwmatrix and of the interpreter never count.
    """
    if not traceback:
        return None
    # If several exporters failed, the message of the first one counts (see normalized), and so does its place.
    before, *exporters = _EXPORTER.split(traceback[:_SEARCHED])
    return next((site for site in map(_site, (*exporters, before)) if site is not None), None)


def _site(traceback: str) -> Site | None:
    attempts = reversed(_MEANWHILE.split(traceback))
    errors = [_frames(error) for attempt in attempts for error in _BECAUSE.split(attempt)]
    for frames in errors:
        own = [frame for frame in frames if frame.inside.startswith(_TRANSFORMERS) and not frame.inside.startswith(_WRAPPERS)]
        if own:
            return _site_of_last(own)
    return next((_site_at(frames[-1], frames[-1].function, transformers=False) for frames in errors if frames), None)


def _site_of_last(frames: list[_Frame]) -> Site:
    """The last frame. If its function has no name (``<listcomp>``), the last named function of the same file is used."""
    last = frames[-1]
    named = (frame.function for frame in reversed(frames) if frame.inside == last.inside and not frame.function.startswith("<"))
    return _site_at(last, next(named, last.function), transformers=True)


def _site_at(frame: _Frame, function: str, *, transformers: bool) -> Site:
    file = frame.inside.removeprefix(_TRANSFORMERS) if transformers else frame.inside
    code = frame.code if frame.code is None or len(frame.code) <= _LONGEST_CODE else f"{frame.code[: _LONGEST_CODE - 1].rstrip()}…"
    return Site(file=file, function=function, transformers=transformers, line=frame.line, code=code)


def _frames(traceback: str) -> list[_Frame]:
    """The frames in packages other than hwmatrix, outermost first: the file relative to site-packages, and the function."""
    matches = (*_CAUSED_BY.finditer(traceback), *_FRAME.finditer(traceback))
    found = (each.groupdict() for each in matches)
    frames = (
        _Frame(
            inside=each["inside"].replace("\\", "/"),
            function=each["function"],
            line=int(each["line"]),
            code=each["code"].strip() if each.get("code") else None,
        )
        for each in found
    )
    return [frame for frame in frames if not frame.inside.startswith(_OURS)]
