"""libyaml reads what PyYAML's own parser reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hwmatrix.basics.plain_yaml import parsed

PACKAGE = Path(__file__).parents[3] / "harness" / "hwmatrix"
FILES = sorted(PACKAGE.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_package_s_files_have_the_same_data(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert parsed(text) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["a: [1", "!!python/object:os.system {}", "a: b: c"])
def test_what_is_no_plain_data_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        parsed(text)
