"""The keys of a cluster. Every member has the same certificate; whoever has none signed by its authority is refused.

A scheduler executes whatever code its clients send, so the traffic is always encrypted, and both sides check each other's certificate
(https://distributed.dask.org/en/stable/tls.html). The authority's private key is never stored: a cluster that needs a new certificate gets
new keys.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed.security import Security

from hwmatrix.basics.clock import now
from hwmatrix.errors import ConfigError, Problem, StoreError

if TYPE_CHECKING:
    from pathlib import Path

AUTHORITY: Final = "authority.pem"
CERTIFICATE: Final = "member.pem"
PRIVATE_KEY: Final = "member.key"
FILES: Final = (AUTHORITY, CERTIFICATE, PRIVATE_KEY)
DAYS: Final = 365
_CLOCKS_DIFFER_BY: Final = dt.timedelta(hours=1)


def make_keys(folder: Path, *, days: int = DAYS) -> None:
    """Write the keys of a new cluster into a folder, which only its owner may read.

    Raises:
        ConfigError: the folder has keys already.
        StoreError: the folder cannot be written.
    """
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        hint = "name another folder, or delete these files: members with the old keys are then refused"
        raise ConfigError([Problem(where=str(folder), what=f"it already has {', '.join(there)}", hint=hint)])
    begin = now() - _CLOCKS_DIFFER_BY
    end = now() + dt.timedelta(days=days)
    signing, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate(
        "hwmatrix cluster authority", signing, issuer="hwmatrix cluster authority", signed_by=signing, span=(begin, end)
    )
    member = _certificate("hwmatrix cluster member", own, issuer="hwmatrix cluster authority", signed_by=signing, span=(begin, end))
    secret = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption_algorithm=serialization.NoEncryption()
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / AUTHORITY).write_bytes(authority.public_bytes(serialization.Encoding.PEM))
        (folder / CERTIFICATE).write_bytes(member.public_bytes(serialization.Encoding.PEM))
        (folder / PRIVATE_KEY).touch(mode=0o600)
        (folder / PRIVATE_KEY).write_bytes(secret)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written: {error}", advice="Name another folder.") from error


def security(folder: Path) -> Security:
    """Return the settings with which a member speaks to the others: TLS only, with these keys.

    Raises:
        ConfigError: a file is missing or unreadable, or the certificate has expired.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        hint = "make them once with hwmatrix cluster keys, and copy the folder to every machine of the cluster"
        raise ConfigError([Problem(where=str(folder), what=f"it has no {', '.join(missing)}", hint=hint)])
    try:
        end = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        what = f"cannot be read: {error}"
        raise ConfigError([Problem(where=str(folder / CERTIFICATE), what=what, hint="copy it from another member")]) from error
    if end < now():
        hint = "make new keys with hwmatrix cluster keys, and copy them to every machine of the cluster"
        raise ConfigError([Problem(where=str(folder / CERTIFICATE), what=f"it expired on {end:%Y-%m-%d}", hint=hint)])
    ours = {"cert": str(folder / CERTIFICATE), "key": str(folder / PRIVATE_KEY)}
    roles = {f"tls_{role}_{part}": path for role in ("client", "scheduler", "worker") for part, path in ours.items()}
    return Security(tls_ca_file=str(folder / AUTHORITY), require_encryption=True, **roles)


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, *, issuer: str, signed_by: ec.EllipticCurvePrivateKey, span: tuple[dt.datetime, dt.datetime]
) -> x509.Certificate:
    """A certificate; its own authority if it signs itself."""
    itself = key is signed_by
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(span[0])
        .not_valid_after(span[1])
        .add_extension(x509.BasicConstraints(ca=itself, path_length=0 if itself else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signed_by.public_key()), critical=False)
        .add_extension(_usage(signs=itself), critical=True)
        .sign(signed_by, hashes.SHA256())
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
