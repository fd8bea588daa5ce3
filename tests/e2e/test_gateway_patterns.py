"""A member that subscribes by a pattern, through a gateway that checks ACLs, on a real broker: it learns of
no topic that it may not DESCRIBE, neither from its answers nor by what is stored of its group (rows RA1 to
RA5).
"""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from embedded.broker import EmbeddedBroker
from gateway.authorization.sources import AclOptions
from gateway.net.options import GatewayOptions
from gateway.service import serving
from kafka_why.connections import kafka_clients
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.pack import unpack
from tests.e2e.gateway_clients import ConfluentMember
from tests.e2e.harness import (
    create_topic,
    history_of,
    read_topic,
    settle,
    snapshots_of,
    topic_id_of,
    wait_until,
)
from tests.harness.shared import PREFIX
from tests.harness.transactions import Wire

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

DESCRIBE = 69
PATTERN = "^.*"


@pytest.fixture
def mine() -> str:
    """Return the prefix of the topics that the client may read."""
    return f"allowed-{uuid.uuid4()}-"


@pytest.fixture
def checking(options: GatewayOptions, mine: str, tmp_path: Path) -> Iterator[str]:
    """Yield a gateway that checks ACLs, before the coordinator that all tests share."""
    acls = tmp_path / "acls.json"
    everyone = {"principal": "User:ANONYMOUS", "operations": ["READ"], "pattern_type": "PREFIXED"}
    resources = [{"resource_type": "TOPIC", "name": mine}, {"resource_type": "GROUP", "name": "group-"}]
    acls.write_text(json.dumps({"acls": [everyone | resource for resource in resources]}))
    with serving(replace(options, acls=AclOptions(acls))) as address:
        yield str(address)


def stored_of(options: GatewayOptions, group_id: str) -> bytes:
    """All that the coordinator's topics have of a group: requests, answers, views and history."""
    layout, found = options.layout, []
    settle(options.client_config, layout)
    for topic in (layout.requests_topic, layout.responses_topic, layout.groups_topic, layout.events_topic):
        for record in read_topic(options.client_config, topic):
            of_record = unpack(record.value or b"")
            found += [part for part in of_record if f'"group_id":"{group_id}"'.encode() in part]
    return b"\n".join(found)


def why(broker: EmbeddedBroker, group_id: str) -> str:
    common = ["--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
    result = CliRunner().invoke(main, ["why", group_id, *common])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_pattern_shows_no_topic_that_its_member_may_not_describe(
    broker: EmbeddedBroker, options: GatewayOptions, gateway: str, checking: str, mine: str, group: str
) -> None:
    config = options.client_config
    hidden = [f"hidden-{uuid.uuid4()}" for _ in range(2)]
    first, later = f"{mine}1", f"{mine}2"
    for topic in (hidden[0], first):
        create_topic(config, topic, 1, {})
    open_group = f"{group}-open"
    with (
        closing(ConfluentMember(checking, group, PATTERN, is_of_consumer_protocol=True)) as member,
        closing(ConfluentMember(gateway, open_group, "^hidden-.*", is_of_consumer_protocol=True)) as other,
    ):
        wait_until(lambda: member.topics() == {first}, "the topic that the member may see")
        wait_until(lambda: set(hidden[:1]) <= other.topics(), "the hidden topic of a member that may see it")
        for topic in (hidden[1], later):
            create_topic(config, topic, 1, {})
        wait_until(lambda: member.topics() == {first, later}, "the topic that came later")
        wait_until(lambda: set(hidden) <= other.topics(), "the hidden topic that came later")
        hidden_ids = [topic_id_of(config, topic) for topic in hidden]
        with closing(kafka_clients.admin(config)) as admin:
            admin.delete_topics([first])
        wait_until(lambda: member.topics() == {later}, "the end of the topic that was deleted")
        with Wire(checking) as wire:
            (described,) = wire.ask(DESCRIBE, 1, group_ids=[group]).groups
        assert described.error_code == 0
        assert later in str(described)
    stored = stored_of(options, group)
    assert later.encode() in stored
    explained = why(broker, group)
    for name in (*hidden, *hidden_ids):
        assert name not in str(described)
        assert name.encode() not in stored
        assert name not in explained
    assert hidden[1].encode() in stored_of(options, open_group)
    views = [view.consumer for view in snapshots_of(config, options.layout, group) if view.consumer]
    assert all(view.checked_regexes for view in views if view.resolved_regexes)
    resolved = [e for e in history_of(config, options.layout, group) if e.type is EntryType.REGEX_RESOLVED]
    assert resolved[0].topics == [first]
