"""`why` at a cluster where nothing of ours was set up, as a user who may read `__consumer_offsets` alone."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli import main
from kafka_why.connections import kafka_clients
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC
from kafka_why.why import at_once
from kafka_why.why.live_sources import LiveOffsetsTopic
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, new_group, share
from tests.e2e.harness import create_topic, wait_until
from tests.harness.secured_broker import (
    ADMIN,
    TOOLS,
    Allowed,
    ClusterSecurity,
    SecuredBroker,
    grant,
    write_properties,
)

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

READER, STRANGER, POLLER = "alice", "bob", TOOLS
TOPIC = "orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    folder = tmp_path_factory.mktemp("secured")
    with SecuredBroker(folder, ClusterSecurity(folder / "security", authorizes=True)) as broker:
        create_topic(broker.config_of(ADMIN), TOPIC, PARTITIONS, {})
        may = [
            Allowed(READER, "TOPIC", KAFKAS_OFFSETS_TOPIC, "LITERAL", ("READ",)),
            Allowed(POLLER, "TOPIC", TOPIC, "LITERAL", ("DESCRIBE",)),
            Allowed(POLLER, "GROUP", "group-", "PREFIXED", ("DESCRIBE",)),
        ]
        grant(broker.config_of(ADMIN), may)
        yield broker


def member(broker: SecuredBroker, group: str, *, epochs: bool) -> ConfluentMember:
    config = broker.config_of(ADMIN)
    return ConfluentMember(
        config.bootstrap_servers,
        group,
        TOPIC,
        is_of_consumer_protocol=epochs,
        settings=config.librdkafka_settings(),
    )


def ask(broker: SecuredBroker, folder: Path, user: str, *arguments: str) -> Result:
    properties = folder / f"{user}.properties"
    if not properties.exists():
        write_properties(properties, broker.security.client_properties(user))
    cluster = ("--bootstrap-servers", broker.bootstrap_servers, "--client-config", str(properties))
    return CliRunner().invoke(main, [*arguments, *cluster])


@pytest.mark.parametrize("epochs", [False, True], ids=["classic", "consumer protocol"])
def test_group_is_explained_after_the_fact(
    broker: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, epochs: bool
) -> None:
    monkeypatch.setattr(at_once, "WATCH_S", 1)
    group = new_group()
    with closing(member(broker, group, epochs=epochs)) as stays:
        share(stays)
        with closing(member(broker, group, epochs=epochs)) as leaves:
            share(stays, leaves)
        share(stays)
        listed = ask(broker, tmp_path, ADMIN, "groups", "list", "--state", "--type")
        described = ask(broker, tmp_path, ADMIN, "groups", "describe", group, "--members", "-o", "json")
        polled = ask(broker, tmp_path, POLLER, "why", group, "-o", "json")
        with closing(LiveOffsetsTopic(broker.config_of(READER), group, None, lambda *_: None)) as live:
            assert live.more() == [], "READ on the topic is enough to follow a group"
    assert polled.exit_code == 0, polled.output
    report = json.loads(polled.stdout)
    assert (report["state"], len(report["members"]), report["rebalances"]) == ("Stable", 1, [])
    assert f"--operation Read --topic {KAFKAS_OFFSETS_TOPIC}" in report["notes"][-1]
    kind = "Consumer" if epochs else "Classic"
    assert [group, kind, "Stable"] in [line.split() for line in listed.stdout.splitlines()], listed.output
    (shown,) = json.loads(described.stdout)
    assert (shown["state"], [one["partitions"] for one in shown["members"]]) == ("Stable", [PARTITIONS])
    told = ask(broker, tmp_path, READER, "why", group, "-o", "json")
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    assert [one["cause"]["kind"] for one in report["rebalances"]] == ["member joined"] * 2 + [
        "member left or expired"
    ] * 2
    assert (report["state"], report["members"]) == ("Empty", [])
    assert [one["moves"]["moved"] for one in report["rebalances"]][1:3] == [PARTITIONS // 2] * 2
    assert f"read from {KAFKAS_OFFSETS_TOPIC}-" in report["notes"][-1]
    with closing(kafka_clients.admin(broker.config_of(ADMIN))) as admin:
        assert set(admin.list_topics()) <= {TOPIC, KAFKAS_OFFSETS_TOPIC}, "the command creates no topic"


def test_missing_right_is_named_with_the_command_that_grants_it(
    broker: SecuredBroker, tmp_path: Path
) -> None:
    told = ask(broker, tmp_path, STRANGER, "why", "orders-service")
    assert told.exit_code == 1
    assert f"--operation Read --topic {KAFKAS_OFFSETS_TOPIC}" in told.stderr
    assert "--operation Describe --group orders-service" in told.stderr


def test_unknown_group_is_an_error(broker: SecuredBroker, tmp_path: Path) -> None:
    wait_until(
        lambda: "is unknown" in ask(broker, tmp_path, READER, "why", "nobody").stderr,
        "the error about the group",
    )
