"""Committed offsets of deleted topics, as unmodified clients see them."""

import json
from contextlib import closing

import pytest

from cli.groups import groups
from gateway.net.server import GatewayOptions
from kafka_why.connections import kafka_clients
from kafka_why.contract.kafka.history import EntryType
from tests.e2e.gateway_clients import PARTITIONS, RECORDS, PythonMember, consume, new_group, produce, share
from tests.e2e.harness import create_topic, history_of, offset_records, topic_id_of, wait_until
from tests.harness.commands import invoke

pytestmark = pytest.mark.e2e


def test_recreated_topic_has_no_old_offsets(gateway: str, options: GatewayOptions, topic: str) -> None:
    client_config, layout, group_id = options.client_config, options.layout, new_group()
    consume_and_leave(gateway, group_id, topic, range(RECORDS))
    with closing(kafka_clients.admin(client_config)) as admin:
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics(), "the topic is deleted")
    create_topic(client_config, topic, PARTITIONS, {})
    # Fewer than before: a position of the old topic would be beyond its end.
    consume_and_leave(gateway, group_id, topic, range(1_000, 1_004))
    # The new topic's offsets are kept.
    with closing(PythonMember(gateway, group_id, topic)) as member:
        produce(str(client_config), topic, range(2_000, 2_004))
        assert consume(4, member) == [2_000, 2_001, 2_002, 2_003]
    committed = offset_records(client_config, layout, group_id)
    expected = {(1, topic_id_of(client_config, topic))}
    assert {(record.offset, str(record.topic_id)) for record in committed} == expected


def test_offsets_of_a_deleted_topic_are_removed(gateway: str, options: GatewayOptions, topic: str) -> None:
    servers, layout, group_id = options.client_config, options.layout, new_group()
    consume_and_leave(gateway, group_id, topic, range(RECORDS))
    assert described(options, group_id) == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
    with closing(kafka_clients.admin(servers)) as admin:
        admin.delete_topics([topic])
    wait_until(lambda: not described(options, group_id), "the group has no offsets")
    assert not offset_records(servers, layout, group_id), "the offsets topic has tombstones"
    (deleted,) = (
        entry for entry in history_of(servers, layout, group_id) if entry.type is EntryType.OFFSETS_DELETED
    )
    assert (deleted.rule, deleted.reason) == ("D6", "the topic was deleted")
    assert deleted.partitions == {topic: list(range(PARTITIONS))}


def consume_and_leave(gateway: str, group_id: str, topic: str, values: range) -> None:
    """Produce records, consume them in the group from the topic's beginning, commit, and leave."""
    produce(gateway, topic, values)
    with closing(PythonMember(gateway, group_id, topic)) as member:
        share(member)
        assert set(member.committed(topic).values()) == {None}
        assert consume(len(values), member) == list(values)
        member.commit()


def described(options: GatewayOptions, group_id: str) -> dict[int, int]:
    """Return the offset of each partition that `groups describe` shows."""
    prefix = options.layout.requests_topic.removesuffix("-requests")
    where = ["--bootstrap-servers", str(options.client_config), "--prefix", prefix]
    result = invoke(groups, ["describe", *where, "--group", group_id, "-o", "json"])
    if "does not exist" in result.stderr:  # a group without members and offsets ends at the next pass
        return {}
    assert result.exit_code == 0, result.output
    (group,) = json.loads(result.stdout)
    return {row["partition"]: row["current_offset"] for row in group["partitions"]}
