"""Groups move from the cluster's own coordinator to this one and back, by the command."""

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition

from cli import main
from embedded.broker import EmbeddedBroker
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, Member, PythonMember, consume, produce

pytestmark = pytest.mark.e2e

RECORDS = 8


@contextmanager
def members(servers: str, topic: str, group_ids: Sequence[str]) -> Iterator[tuple[Member, Member]]:
    """Yield a member of each group: one of the classic protocol, one of the consumer protocol."""
    classic, consumer = group_ids
    with (
        closing(PythonMember(servers, classic, topic)) as one,
        closing(ConfluentMember(servers, consumer, topic, is_of_consumer_protocol=True)) as other,
    ):
        yield one, other


@pytest.fixture
def group_ids(broker: EmbeddedBroker, topic: str) -> list[str]:
    """Groups of Kafka's own coordinator, one of each protocol, that have consumed the topic and have no
    members.
    """
    names = [f"adopted-{protocol}-{uuid.uuid4()}" for protocol in ("classic", "consumer")]
    produce(broker.bootstrap_servers, topic, range(RECORDS))
    with members(broker.bootstrap_servers, topic, names) as both:
        for member in both:
            assert sorted(consume(RECORDS, member)) == list(range(RECORDS))
            member.commit()
    return names


def adopt(source: str, target: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["adopt", "--from", source, "--to", target, "-o", "json", *options])


def rows(result: Result, exit_code: int = 0) -> list[dict[str, Any]]:
    assert result.exit_code == exit_code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def said(result: Result, exit_code: int = 0) -> list[str]:
    """Return the outcome for each group, or the reason of its refusal."""
    return [row["reason"] or row["outcome"] for row in rows(result, exit_code)]


def test_adopted_groups_continue_at_the_other_coordinator_and_can_return(
    broker: EmbeddedBroker, gateway: str, topic: str, group_ids: list[str]
) -> None:
    """One of the classic and one of the consumer protocol, with the offsets of either coordinator."""
    theirs, named = broker.bootstrap_servers, [part for it in group_ids for part in ("--group", it)]
    shown = adopt(theirs, gateway, *named)
    assert [(row["outcome"], row["partitions"], row["state"]) for row in rows(shown)] == [
        ("move", PARTITIONS, "Empty")
    ] * 2
    assert "nothing is changed" in shown.stderr
    of_all = rows(adopt(theirs, gateway))
    assert [row["outcome"] for row in of_all if row["group"] in group_ids] == ["move"] * 2
    assert said(adopt(theirs, gateway, *named, "--execute")) == ["moved"] * 2
    assert said(adopt(theirs, gateway, *named, "--execute")) == ["same"] * 2

    produce(gateway, topic, range(RECORDS, 2 * RECORDS))
    with members(gateway, topic, group_ids) as both:
        for member in both:
            # None of the first records again.
            assert sorted(consume(RECORDS, member)) == list(range(RECORDS, 2 * RECORDS))
        refused = adopt(gateway, theirs, *named, "--execute")
        assert said(refused, exit_code=1) == ["has 1 members: stop them first"] * 2
        for member in both:
            member.commit()

    refused = adopt(gateway, theirs, *named, "--execute")
    assert all("has other offsets" in reason for reason in said(refused, exit_code=1))
    assert said(adopt(gateway, theirs, *named, "--execute", "--overwrite")) == ["moved"] * 2
    produce(gateway, topic, range(2 * RECORDS, 3 * RECORDS))
    with members(theirs, topic, group_ids) as both:
        for member in both:
            assert sorted(consume(RECORDS, member)) == list(range(2 * RECORDS, 3 * RECORDS))
        refused = adopt(theirs, gateway, *named, "--execute")
        assert said(refused, exit_code=1) == ["has 1 members: stop them first"] * 2


def test_adoption_keeps_leader_epochs_and_metadata(broker: EmbeddedBroker, gateway: str, topic: str) -> None:
    group_id, at = f"adopted-{uuid.uuid4()}", OffsetAndMetadata(3, "by a batch job", 0)
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.alter_group_offsets(group_id, {TopicPartition(topic, 1): at})
    (row,) = rows(adopt(broker.bootstrap_servers, gateway, "--group", group_id, "--execute"))
    assert row["partitions"] == 1
    with closing(KafkaAdminClient(bootstrap_servers=gateway)) as admin:
        assert admin.list_group_offsets(group_id)[group_id] == {TopicPartition(topic, 1): at}


def test_impossible_adoption_is_reported(broker: EmbeddedBroker, gateway: str) -> None:
    nobody = adopt(broker.bootstrap_servers, gateway, "--group", "nobody")
    assert (nobody.exit_code, "Error: --from has no group nobody" in nobody.stderr) == (1, True)
    away = adopt("127.0.0.1:1", gateway, "--timeout", "500")
    assert away.exit_code == 1
    assert away.stderr.startswith("Error: 127.0.0.1:1: ")
