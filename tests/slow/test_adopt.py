"""Groups move from the cluster's own coordinator to this one and back, by the command."""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition

from cli import main
from embedded.broker import EmbeddedBroker
from tests.e2e.gateway_clients import PARTITIONS, PythonMember, consume, produce

pytestmark = pytest.mark.e2e

RECORDS = 8


@pytest.fixture
def group_id(broker: EmbeddedBroker, topic: str) -> Iterator[str]:
    """A group of Kafka's own coordinator that has consumed the topic, and has no members."""
    name = f"adopted-{uuid.uuid4()}"
    produce(broker.bootstrap_servers, topic, range(RECORDS))
    with closing(PythonMember(broker.bootstrap_servers, name, topic)) as member:
        assert sorted(consume(RECORDS, member)) == list(range(RECORDS))
        member.commit()
    yield name


def adopt(source: str, target: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["adopt", "--from", source, "--to", target, "-o", "json", *options])


def rows(result: Result, exit_code: int = 0) -> list[dict[str, Any]]:
    assert result.exit_code == exit_code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_group_goes_on_at_the_other_coordinator_and_comes_back(
    broker: EmbeddedBroker, gateway: str, topic: str, group_id: str
) -> None:
    theirs, named = broker.bootstrap_servers, ("--group", group_id)
    (row,) = rows(shown := adopt(theirs, gateway, *named))
    assert (row["outcome"], row["partitions"], row["state"]) == ("move", PARTITIONS, "Empty")
    assert "nothing is changed" in shown.stderr
    (row,) = rows(adopt(theirs, gateway, *named, "--execute"))
    assert row["outcome"] == "moved"
    assert rows(adopt(theirs, gateway, *named, "--execute"))[0]["outcome"] == "same"

    produce(gateway, topic, range(RECORDS, 2 * RECORDS))
    with closing(PythonMember(gateway, group_id, topic)) as member:
        # None of the first records again.
        assert sorted(consume(RECORDS, member)) == list(range(RECORDS, 2 * RECORDS))
        (row,) = rows(adopt(gateway, theirs, *named, "--execute"), exit_code=1)
        assert row["reason"] == "has 1 members: stop them first"
        member.commit()

    (row,) = rows(adopt(gateway, theirs, *named, "--execute"), exit_code=1)
    assert "has other offsets" in row["reason"]
    assert rows(adopt(gateway, theirs, *named, "--execute", "--overwrite"))[0]["outcome"] == "moved"
    produce(gateway, topic, range(2 * RECORDS, 3 * RECORDS))
    with closing(PythonMember(theirs, group_id, topic)) as member:
        assert sorted(consume(RECORDS, member)) == list(range(2 * RECORDS, 3 * RECORDS))


def test_leader_epochs_and_metadata_come_along(broker: EmbeddedBroker, gateway: str, topic: str) -> None:
    group_id, at = f"adopted-{uuid.uuid4()}", OffsetAndMetadata(3, "by a batch job", 0)
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.alter_group_offsets(group_id, {TopicPartition(topic, 1): at})
    (row,) = rows(adopt(broker.bootstrap_servers, gateway, "--group", group_id, "--execute"))
    assert row["partitions"] == 1
    with closing(KafkaAdminClient(bootstrap_servers=gateway)) as admin:
        assert admin.list_group_offsets(group_id)[group_id] == {TopicPartition(topic, 1): at}


def test_all_groups_are_taken_if_none_is_named(broker: EmbeddedBroker, gateway: str, group_id: str) -> None:
    assert group_id in {row["group"] for row in rows(adopt(broker.bootstrap_servers, gateway))}


def test_what_cannot_be_done_is_said(broker: EmbeddedBroker, gateway: str) -> None:
    nobody = adopt(broker.bootstrap_servers, gateway, "--group", "nobody")
    assert (nobody.exit_code, "Error: --from has no group nobody" in nobody.stderr) == (1, True)
    away = adopt("127.0.0.1:1", gateway, "--timeout", "500")
    assert away.exit_code == 1
    assert away.stderr.startswith("Error: 127.0.0.1:1: ")
