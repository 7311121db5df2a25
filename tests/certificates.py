"""Certificates for tests, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificates(NamedTuple):
    """An authority, and a certificate by it."""

    ca: Path
    cert: Path
    key: Path

    def keys(self) -> dict[str, object]:
        """As keys of a job."""
        return {"tls_ca": str(self.ca), "tls_cert": str(self.cert), "tls_key": str(self.key)}


def make_certificates(folder: Path, address: str = "127.0.0.1") -> Certificates:
    """An authority of its own, and a certificate for an address, in a new folder."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificates can be made here")
    folder.mkdir()
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _openssl(*new, "-keyout", folder / "ca.key", "-out", made.ca, "-subj", "/CN=authority")
    signed = ("-CA", made.ca, "-CAkey", folder / "ca.key", "-subj", "/CN=aggregator")
    names = ("-addext", f"subjectAltName=IP:{address}")
    _openssl(*new, "-keyout", made.key, "-out", made.cert, *signed, *names)
    made.key.chmod(0o600)
    return made


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
