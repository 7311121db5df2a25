"""The secret of a job: who has it may take part, everybody else is refused.

Our launchers make one for every job and hand it to their executors through a pipe: see
`executor_process.py`. Processes that somebody else starts read it from the file that
FEDSUV_TOKEN_FILE names.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import secrets
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from fedsuv_plugin.errors import UserError

VARIABLE = "FEDSUV_TOKEN_FILE"
HEADER = "fedsuv-token"  # the metadata of a call in which it is sent
SHORTEST = 16  # characters
MOST_NOTED = 1000  # unknown peers that are logged


def make_token() -> str:
    return secrets.token_hex(32)


def token_of_environment() -> str | None:
    """The secret that this process was given; None if it was given none."""
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    path = Path(name).expanduser()
    try:
        text = private_file(path, VARIABLE).decode("ascii", "replace")
    except OSError as error:
        raise UserError(f"{VARIABLE}: cannot read {path} ({error.strerror})") from None
    return _checked(text.strip(), path)


def private_file(path: Path, what: str) -> bytes:
    """What is in a file that nobody but its owner may read."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserError(
                f"{what}: expected a file that only its owner can read, {path} has mode "
                f"{mode:03o}; run: chmod 600 {path}"
            )
        return file.read()


def _checked(token: str, source: Path) -> str:
    if len(token) < SHORTEST or not all("!" <= c <= "~" for c in token):
        raise UserError(
            f"{VARIABLE}: expected one word of at least {SHORTEST} characters in {source}; make "
            "one with: python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return token


def refuse_strangers_nearby(ip: str, token: str | None, insecure: bool) -> None:
    """Without a secret a job listens where only this machine reaches it, unless it says otherwise.

    Then it is printed."""
    if token is not None or _is_loopback(ip):
        return
    if not insecure:
        raise UserError(
            f"ps_ip: without a secret expected a loopback address such as 127.0.0.1, got {ip!r}; "
            f"put one into a file that {VARIABLE} names, or set insecure: true"
        )
    print(f"insecure: whoever reaches {ip} can take part in this job", file=sys.stderr)


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address, or every address of a name."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


class SecretCheck(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Lets nobody call who does not send the secret; an unknown host is logged once."""

    def __init__(self, token: str | None):
        self._token = None if token is None else token.encode()
        self._noted: set[str] = set()
        # It takes a stream, so a message of a stranger is never read.
        self._refuse = grpc.stream_unary_rpc_method_handler(self._refused)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        given = dict(details.invocation_metadata).get(HEADER, "")
        given = given if isinstance(given, bytes) else given.encode()
        if self._token is None or hmac.compare_digest(given, self._token):
            return continuation(details)
        return self._refuse

    def _refused(self, requests: object, context: grpc.ServicerContext) -> None:
        host = context.peer().rpartition(":")[0]
        if host not in self._noted and len(self._noted) < MOST_NOTED:
            self._noted.add(host)
            logging.warning("refused calls from %s: it does not have the secret of this job", host)
        context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            f"it does not have the secret of this job; see {VARIABLE}",
        )
