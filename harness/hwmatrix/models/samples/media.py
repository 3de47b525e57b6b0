"""Pictures, films and sounds that are computed: a class and a view of it give always the same one. They need no file and no licence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLING_RATE: Final = 16_000
"""Hz: the rate of every sound."""
CLASSES: Final = 16
"""How many classes of pictures and of sounds there are."""
_Array = np.ndarray[Any, np.dtype[Any]]
_SIDE: Final = 256
_COLORS: Final = (("red", (214, 39, 40)), ("green", (44, 160, 44)), ("blue", (31, 119, 180)), ("yellow", (240, 200, 20)))
_SHAPES: Final[tuple[tuple[str, Callable[[_Array, _Array], _Array]], ...]] = (
    ("circle", lambda x, y: 1.0 - x**2 - y**2),
    ("square", lambda x, y: 0.9 - np.maximum(abs(x), abs(y))),
    ("triangle", lambda x, y: np.minimum(0.8 - y, y - 2.2 * abs(x) + 1.0)),
    ("cross", lambda x, y: 0.3 - np.minimum(abs(x), abs(y))),
)
"""Names, and functions of x and y that are positive within a shape of radius 1."""
_BASE_HZ: Final = 220.0
_STEPS: Final = (0, 2, 4, 5, 7, 9, 11, 12)
"""A major scale, in semitones."""
_NOTES: Final = 4


def caption(kind: int) -> str:
    """What the pictures of a class show."""
    return f"a photo of a {_COLORS[kind // 4 % 4][0]} {_SHAPES[kind % 4][0]}"


def picture(kind: int, view: int) -> _Array:
    """A shape of one color on a ground of soft light, with a little grain: (256, 256, 3), uint8.

    ``kind`` chooses shape and color, ``view`` the place, the size and the ground.
    """
    random = np.random.default_rng([kind, view])
    y, x = np.mgrid[-1.0 : 1.0 : _SIDE * 1j, -1.0 : 1.0 : _SIDE * 1j]
    light = random.uniform(120, 200, 3) + 40 * (x * random.uniform(-1, 1) + y * random.uniform(-1, 1))[..., None]
    center, radius = random.uniform(-0.3, 0.3, 2), random.uniform(0.35, 0.6)
    x, y = x - center[0], y - center[1]
    inside = (_SHAPES[kind % 4][1](x / radius, y / radius) > 0) & (np.hypot(x, y) < 1.3 * radius)
    image = np.where(inside[..., None], _COLORS[kind // 4 % 4][1], light) + random.normal(0, 4, (_SIDE, _SIDE, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


def film(kind: int, view: int, frames: int) -> list[_Array]:
    """A picture that drifts in one direction: ``frames`` arrays of (256, 256, 3), uint8."""
    still = picture(kind, view)
    steps = np.random.default_rng([kind, view, 1]).integers(-6, 7, 2)
    return [np.roll(still, (number * int(steps[0]), number * int(steps[1])), axis=(0, 1)) for number in range(frames)]


def sound(kind: int, view: int, seconds: float = 2.0) -> _Array:
    """Four notes of a scale with overtones and soft noise, at 16 kHz: (samples,), float32, peak below 1.

    ``kind`` chooses the melody, ``view`` the pitch and the noise.
    """
    random = np.random.default_rng([kind, view])
    melody = np.random.default_rng(kind).integers(0, len(_STEPS), _NOTES)
    each = int(seconds * SAMPLING_RATE) // _NOTES
    time = np.arange(each) / SAMPLING_RATE
    fade = np.minimum(1.0, np.minimum(time, time[::-1]) / 0.02)
    base = _BASE_HZ * 2.0 ** (random.integers(-3, 4) / 12)
    notes = [sum(np.sin(2 * np.pi * base * 2.0 ** (_STEPS[step] / 12) * n * time) / n for n in (1, 2, 3)) * fade for step in melody]
    wave = 0.3 * np.concatenate(notes) + random.normal(0, 0.01, each * _NOTES)
    return wave.astype(np.float32)
