"""What both ends of a connection agree on: addresses, certificates, and when silence is death."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.secret import private_file
from fedsuv_plugin.engine.stock import MAX_MESSAGE_LENGTH
from fedsuv_plugin.errors import UserError

LEASES = "fedsuv_plugin.Leases"  # our one service beside FedScale's
HOLD = "HOLD"  # its one call: a stream of signs of life
BEATS = 4  # signs of life in the time after which silence is death
RECONNECT_MS = (200, 2000, 2000)  # first pause between attempts, longest pause, time of an attempt


def address(config: JobConfig) -> str:
    """Where the aggregator is, as gRPC writes it.

    >>> address(JobConfig(ps_ip="::1", ps_port=29500))
    '[::1]:29500'
    """
    host = f"[{config.ps_ip}]" if ":" in config.ps_ip else config.ps_ip
    return f"{host}:{config.ps_port}"


def options(config: JobConfig) -> list[tuple[str, int]]:
    """Options of either end: a connection on which nothing answers is closed."""
    silence = max(1, int(config.executor_timeout * 1000))
    pause, longest, attempt = RECONNECT_MS
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_LENGTH),
        ("grpc.max_receive_message_length", MAX_MESSAGE_LENGTH),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", max(1, silence // BEATS)),
        ("grpc.keepalive_timeout_ms", silence),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # as many as it takes
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.initial_reconnect_backoff_ms", pause),
        ("grpc.max_reconnect_backoff_ms", longest),
        ("grpc.min_reconnect_backoff_ms", attempt),
    ]


def server_credentials(config: JobConfig) -> Any:
    """The aggregator's certificate; None without TLS."""
    if config.tls_cert is None:
        return None
    certificate = _read("tls_cert", config.tls_cert)
    key = _read("tls_key", config.tls_key, private=True)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            _path(config.tls_cert), _path(config.tls_key), password=_no_password
        )
    except (ssl.SSLError, ValueError) as error:
        raise UserError(
            f"tls_cert, tls_key: expected a certificate and its key in PEM, got {config.tls_cert} "
            f"and {config.tls_key} ({error})"
        ) from None
    return grpc.ssl_server_credentials([(key, certificate)])


def channel_credentials(config: JobConfig) -> Any:
    """The certificates by which an executor knows the aggregator; None without TLS."""
    if config.tls_ca is None:
        return None
    authorities = _read("tls_ca", config.tls_ca)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(_path(config.tls_ca))
    except ssl.SSLError as error:
        raise UserError(
            f"tls_ca: expected certificates in PEM, got {config.tls_ca} ({error})"
        ) from None
    return grpc.ssl_channel_credentials(authorities)


def _path(name: str | None) -> Path:
    return Path(name or "").expanduser()


def _read(key: str, name: str | None, private: bool = False) -> bytes:
    try:
        return private_file(_path(name), key) if private else _path(name).read_bytes()
    except OSError as error:
        raise UserError(f"{key}: cannot read {name} ({error.strerror})") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")
