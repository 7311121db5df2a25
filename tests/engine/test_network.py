"""TLS between the hosts, with certificates made here; addresses of both families."""

from __future__ import annotations

from pathlib import Path

import pytest
from certificates import Certificates, make_certificates
from conftest import MakeJob
from engine_worlds import SIZES, TOKEN, register, served_pool

from fedsuv_plugin.config.fingerprint import fingerprint
from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine import network
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.grpc_channel import GrpcChannel
from fedsuv_plugin.engine.grpc_service import GrpcService
from fedsuv_plugin.errors import UserError


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certificates")


def test_a_job_with_certificates_speaks_tls_only(job: MakeJob, certificates: Certificates) -> None:
    with served_pool(job(**certificates.keys())) as served:
        register(served)
        assert len(served.pool) == 1
        plain = GrpcChannel(served.job.with_values(**dict.fromkeys(NO_TLS)).config, TOKEN)
        plain.connect_to_server()
        with pytest.raises(UserError, match="no aggregator at 127.0.0.1:.* within 1 s"):
            plain.register("2", {"size": SIZES, "job": fingerprint(served.job)}, timeout=1)
        plain.close_sever_connection()


NO_TLS = ("tls_ca", "tls_cert", "tls_key")


def test_an_executor_speaks_to_no_aggregator_of_another_authority(
    job: MakeJob, certificates: Certificates, tmp_path: Path
) -> None:
    """Or it would tell the secret to whoever listens there."""
    other = make_certificates(tmp_path / "other")
    with served_pool(job(**certificates.keys())) as served:
        channel = GrpcChannel(served.job.with_values(tls_ca=str(other.ca)).config, TOKEN)
        channel.connect_to_server()
        with pytest.raises(UserError, match="no aggregator at 127.0.0.1:.* within 1 s"):
            channel.register("1", {"size": SIZES, "job": fingerprint(served.job)}, timeout=1)
        channel.close_sever_connection()
        assert len(served.pool) == 0


@pytest.mark.parametrize("key", NO_TLS)
def test_a_file_that_is_missing_is_one_clear_line(
    job: MakeJob, certificates: Certificates, key: str
) -> None:
    made = resolve(job(**{**certificates.keys(), key: "/no/such.pem"}))
    with pytest.raises(UserError, match=f"^{key}: cannot read /no/such.pem .No such file"):
        GrpcChannel(made.config, TOKEN) if key == "tls_ca" else GrpcService(
            ExecutorPool(), made, TOKEN
        )


@pytest.mark.parametrize("key", NO_TLS)
def test_all_three_are_needed(job: MakeJob, certificates: Certificates, key: str) -> None:
    given = {name: path for name, path in certificates.keys().items() if name != key}
    with pytest.raises(UserError, match=f"^{key}: expected a file, because tls_.* is set, got Non"):
        job(**given)


def test_files_that_hold_something_else_are_one_line(
    job: MakeJob, certificates: Certificates, tmp_path: Path
) -> None:
    noise = tmp_path / "noise.pem"
    noise.write_text("no certificate")
    noise.chmod(0o600)
    other = make_certificates(tmp_path / "other")
    for wrong in ({"tls_cert": str(noise)}, {"tls_key": str(noise)}, {"tls_key": str(other.key)}):
        made = resolve(job(**{**certificates.keys(), **wrong}))
        with pytest.raises(UserError, match="^tls_cert, tls_key: expected a certificate and its"):
            GrpcService(ExecutorPool(), made, TOKEN)
    made = resolve(job(**{**certificates.keys(), "tls_ca": str(noise)}))
    with pytest.raises(UserError, match="^tls_ca: expected certificates in PEM, got"):
        GrpcChannel(made.config, TOKEN)


def test_a_key_that_others_can_read_is_refused(job: MakeJob, certificates: Certificates) -> None:
    certificates.key.chmod(0o644)
    with pytest.raises(UserError, match="^tls_key: expected a file that only its owner can read"):
        GrpcService(ExecutorPool(), resolve(job(**certificates.keys())), TOKEN)


def test_addresses_of_both_families() -> None:
    assert network.address(JobConfig(ps_ip="10.0.0.1", ps_port=3000)) == "10.0.0.1:3000"
    assert network.address(JobConfig(ps_ip="fd00::1", ps_port=3000)) == "[fd00::1]:3000"
