"""The keys of a cluster: what is written, who may read it, and what is refused."""

from __future__ import annotations

import datetime as dt
import stat
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from hwmatrix.errors import ConfigError
from hwmatrix.host.cluster import keys

if TYPE_CHECKING:
    from pathlib import Path


def test_a_member_has_a_certificate_signed_by_the_authority(tmp_path: Path) -> None:
    keys.make_keys(tmp_path / "keys", days=10)
    authority, member = (
        x509.load_pem_x509_certificate((tmp_path / "keys" / name).read_bytes()) for name in (keys.AUTHORITY, keys.CERTIFICATE)
    )
    member.verify_directly_issued_by(authority)
    assert member.not_valid_after_utc - member.not_valid_before_utc == dt.timedelta(days=10, hours=1)
    secure = keys.security(tmp_path / "keys")
    assert secure.require_encryption
    for role in ("client", "scheduler", "worker"):
        assert secure.get_tls_config_for_role(role) == {
            "ca_file": str(tmp_path / "keys" / keys.AUTHORITY),
            "cert": str(tmp_path / "keys" / keys.CERTIFICATE),
            "key": str(tmp_path / "keys" / keys.PRIVATE_KEY),
            "ciphers": None,
        } | {name: value for name, value in secure.get_tls_config_for_role(role).items() if name.endswith("version")}


def test_only_the_owner_can_read_the_private_key(tmp_path: Path) -> None:
    keys.make_keys(tmp_path / "keys")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "keys" / keys.PRIVATE_KEY).stat().st_mode) == 0o600


def test_existing_keys_are_not_replaced(tmp_path: Path) -> None:
    keys.make_keys(tmp_path)
    before = (tmp_path / keys.CERTIFICATE).read_bytes()
    with pytest.raises(ConfigError, match=r"it already has authority\.pem, member\.pem, member\.key \(name another folder"):
        keys.make_keys(tmp_path)
    assert (tmp_path / keys.CERTIFICATE).read_bytes() == before


@pytest.mark.parametrize("name", keys.FILES)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    keys.make_keys(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=rf"it has no {name} \(make them once with hwmatrix cluster keys"):
        keys.security(tmp_path)


def test_an_expired_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.make_keys(tmp_path, days=1)
    later = keys.now() + dt.timedelta(days=2)
    monkeypatch.setattr(keys, "now", lambda: later)
    with pytest.raises(ConfigError, match=r"it expired on \d{4}-\d\d-\d\d \(make new keys"):
        keys.security(tmp_path)


def test_a_damaged_certificate_is_refused(tmp_path: Path) -> None:
    keys.make_keys(tmp_path)
    (tmp_path / keys.CERTIFICATE).write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match=r"member\.pem: cannot be read: .*copy it from another member"):
        keys.security(tmp_path)
