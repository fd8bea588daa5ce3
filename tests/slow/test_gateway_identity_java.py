"""Kafka's own consumer at a gateway: by SCRAM beyond the end of its session, and by a certificate."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.net.options import GatewayOptions
from gateway.security.authentication import Security
from gateway.security.settings import ClientAuth, SecuritySettings
from gateway.service import serving
from kafka_why.contract.kafka.history import EntryType
from tests.e2e.gateway_clients import PARTITIONS, new_group, produce
from tests.e2e.harness import history_of, wait_until
from tests.harness.certificates import Authority
from tests.harness.java_tools import ConsoleConsumer, JavaTools

pytestmark = pytest.mark.e2e

REAUTHENTICATION_MS = 3_000
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def consumed(
    options: GatewayOptions,
    topic: str,
    folder: Path,
    security: Security,
    settings: dict[str, str],
    rest_s: float = 0.0,
) -> set[str | None]:
    """Let a console consumer read, rest, and read again. Return the principals of the members that joined."""
    group_id = new_group()
    servers = options.client_config.bootstrap_servers
    produce(servers, topic, range(PARTITIONS))
    with serving(replace(options, security=security)) as address:
        tools = JavaTools(str(address), folder)
        with tools.console_consumer(group_id, topic, **settings) as consumer:
            assert read(consumer, PARTITIONS) == list(range(PARTITIONS))
            time.sleep(rest_s)
            produce(servers, topic, range(PARTITIONS, 2 * PARTITIONS))
            assert read(consumer, PARTITIONS) == list(range(PARTITIONS, 2 * PARTITIONS))
    history = history_of(options.client_config, options.layout, group_id)
    added = [entry.principal for entry in history if entry.type is EntryType.MEMBER_ADDED]
    assert len(added) == 1
    return set(added)


def read(consumer: ConsoleConsumer, records: int) -> list[int]:
    seen: list[int] = []

    def have_enough() -> bool:
        seen.extend(consumer.poll())
        return len(seen) >= records

    wait_until(have_enough, f"{records} records")
    return sorted(seen)


def test_java_authenticates_by_scram_and_does_so_again(
    options: GatewayOptions, topic: str, tmp_path: Path, authority: Authority
) -> None:
    users = tmp_path / "users"
    users.write_text("ann:s3cret\n")
    security = Security(
        SecuritySettings(
            keystore=authority.issue("gateway").both,
            users=users,
            mechanisms=("SCRAM-SHA-512",),
            max_reauth_ms=REAUTHENTICATION_MS,
        )
    )
    settings = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_jaas_config": f'{SCRAM_MODULE} required username="ann" password="s3cret";',
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(authority.certificate),
    }
    rest_s = 2.5 * REAUTHENTICATION_MS / 1_000
    assert consumed(options, topic, tmp_path, security, settings, rest_s) == {"User:ann"}


def test_java_shows_a_certificate(
    options: GatewayOptions, topic: str, tmp_path: Path, authority: Authority
) -> None:
    security = Security(
        SecuritySettings(
            keystore=authority.issue("gateway").both,
            truststore=authority.certificate,
            client_auth=ClientAuth.REQUIRED,
        )
    )
    settings = {
        "security_protocol": "SSL",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(authority.issue("ann", organization="Example").both),
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(authority.certificate),
    }
    assert consumed(options, topic, tmp_path, security, settings) == {"User:CN=ann,O=Example"}
