"""Share groups (KIP-932) with Kafka's own clients and tools through the gateway."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.authorization.sources import AclOptions
from gateway.net.server import GatewayOptions
from gateway.security.authentication import ListenerSecurity
from gateway.service import serving
from gateway.upstream.share_groups import Coordinators
from streaming.service.share_state.partition_tasks import SharePartition
from streaming.service.share_state.thread import BrokerCoordinators
from tests.e2e.gateway_clients import PARTITIONS, new_group, produce
from tests.e2e.harness import topic_id_of, wait_until
from tests.harness.kafkas_shares import JavaShares, ShareMember
from tests.harness.ports import free_address
from tests.harness.transactions import Wire
from tests.harness.users_listener import users_file

pytestmark = pytest.mark.e2e

FIRST, BETWEEN = range(PARTITIONS * 2), range(40, 40 + PARTITIONS)
SECOND, THIRD = range(100, 100 + PARTITIONS * 4), range(200, 200 + PARTITIONS)

USER, PASSWORD = "ann", "not-secret"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{_LOGIN} required username="{USER}" password="{PASSWORD}";',
}


@pytest.fixture
def servers(options: GatewayOptions) -> Iterator[str]:
    """Yield a gateway whose share groups are the coordinator's."""
    with serving(replace(options, share_groups=Coordinators.OURS)) as address:
        yield str(address)


def accepted(member: ShareMember) -> set[int]:
    """Return the records that a member received again after it had released each once, and then accepted."""
    return {value for value, deliveries in member.deliveries.items() if max(deliveries) > 1}


def of_group(group_id: str, lines: list[list[str]]) -> list[list[str]]:
    """Return the lines about a group, sorted."""
    return sorted(line for line in lines if line[0] == group_id)


def lags(shares: JavaShares, group_id: str) -> dict[int, str]:
    """Return the lag that `kafka-share-groups` shows, by partition. The start offset that is shown
    may be behind what is acknowledged.
    """
    lines = of_group(group_id, shares.tool("--describe", "--offsets", "--group", group_id))
    return {int(line[2]): line[4] for line in lines}


def test_kafkas_share_consumers_and_share_group_tools_work(servers: str, topic: str, tmp_path: Path) -> None:
    """Consumers of Kafka 4.4 and 4.3 share the records, and one that a member gives back comes again. The
    setting of the group reaches the leaders: without it the group would begin at the end of the topic. All
    verbs of `kafka-share-groups` work.
    """
    group, values = new_group(), [*FIRST]
    produce(servers, topic, FIRST)
    with ExitStack() as stack:
        shares = stack.enter_context(JavaShares(servers, tmp_path))
        older = stack.enter_context(JavaShares(servers, tmp_path, is_older=True))
        shares.configure(group, "share.auto.offset.reset=earliest")
        with shares.join(group, topic, "release") as mine:
            wait_until(lambda: accepted(mine) == {*FIRST}, "the first records came, and came again")
            with older.join(group, topic) as other:
                wait_until(lambda: len(members(shares, group)) == 2, "both are members")

                def reach_both() -> bool:
                    more = range(len(values), len(values) + PARTITIONS)
                    values.extend(more)
                    produce(servers, topic, more)
                    wait_until(lambda: {*mine.deliveries, *other.deliveries} >= {*more}, f"{more}")
                    return bool(other.deliveries)

                wait_until(reach_both, "the older consumer has some records")
                wait_until(lambda: accepted(mine) | {*other.deliveries} >= {*values}, "each is accepted")
                assert [group, "Stable"] in shares.tool("--list", "--state")
                assert any(
                    line[0] == group and line[-2:] == ["Stable", "2"]
                    for line in shares.tool("--describe", "--state", "--group", group)
                )
        none, all_ = (dict.fromkeys(range(PARTITIONS), str(n)) for n in (0, len(values) // PARTITIONS))
        wait_until(lambda: lags(shares, group) == none, "all records are acknowledged")
        move = "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest"
        moved = [[group, topic, str(number), "0"] for number in range(PARTITIONS)]
        assert of_group(group, shares.tool(*move, "--dry-run")) == moved
        assert lags(shares, group) == none
        assert of_group(group, shares.tool(*move, "--execute")) == moved
        assert lags(shares, group) == all_
        with shares.join(group, topic) as again:
            wait_until(lambda: set(again.deliveries) == {*values}, "all records from the beginning")
        deleted = shares.tool("--delete-offsets", "--group", group, "--topic", topic)
        assert [topic, "Successful"] in deleted
        assert lags(shares, group) == {}
        assert [group] in shares.tool("--list")
        assert any("successful." in line for line in shares.tool("--delete", "--group", group))
        assert [group] not in shares.tool("--list")


def members(shares: JavaShares, group_id: str) -> list[list[str]]:
    lines = of_group(group_id, shares.tool("--describe", "--members", "--group", group_id))
    return [line for line in lines if ":" in line[-1]]


def acl(kind: str, name: str, *operations: str) -> str:
    return (
        f'[[acls]]\nprincipal = "User:{USER}"\nresource_type = "{kind}"\nname = "{name}"\n'
        f"operations = {json.dumps(operations)}\n"
    )


def test_share_group_membership_and_offset_changes_need_acls(
    options: GatewayOptions, topic: str, tmp_path: Path
) -> None:
    """Rows SA1 to SA4, with the coordinator's groups: what a user has no right to ends its consumer, or is
    refused by the tool.
    """
    mine, others = new_group(), new_group()
    file = tmp_path / "acls.toml"
    file.write_text(
        acl("TOPIC", topic, "READ", "WRITE")
        + acl("GROUP", mine, "READ", "ALTER_CONFIGS")
        + acl("GROUP", others, "DESCRIBE")
    )
    users = users_file(tmp_path, {USER: PASSWORD})
    secured = replace(
        options,
        share_groups=Coordinators.OURS,
        security=ListenerSecurity.read(None, None, users, None),
        acls=AclOptions(file),
    )
    with serving(secured) as address, JavaShares(str(address), tmp_path, settings=LOGIN) as shares:
        produce(options.client_config, topic, FIRST)
        shares.configure(mine, "share.auto.offset.reset=earliest")
        with shares.join(mine, topic) as member:
            wait_until(lambda: set(member.deliveries) == {*FIRST}, "the records")
        refused = shares.join(others, topic)
        wait_until(lambda: refused.error is not None, "the consumer ended")
        assert refused.error == "GroupAuthorizationException"
        move = "--reset-offsets", "--topic", topic, "--to-earliest", "--execute", "--group"
        assert of_group(mine, shares.tool(*move, mine))
        assert not of_group(others, shares.tool(*move, others))
        assert not any("successful." in line for line in shares.tool("--delete", "--group", mine))
        assert [mine] in shares.tool("--list")


def state_epochs(options: GatewayOptions, group_id: str, topic: str) -> dict[int, int]:
    """Return the state epoch of each partition, as the share coordinator has recorded it."""
    with BrokerCoordinators(options.client_config, lambda: False) as coordinators:
        topic_id = UUID(topic_id_of(options.client_config, topic))
        keys = [SharePartition(group_id, topic_id, number) for number in range(PARTITIONS)]
        found = coordinators.find(keys)
        nodes = {node for node, error in found.values() if not error}
        read = {
            key.partition: summary
            for node in nodes
            for key, summary in coordinators.read(node, [k for k in keys if found[k][0] == node]).items()
        }
    return {number: summary.state_epoch for number, summary in sorted(read.items())}


def test_share_state_is_initialized_once_despite_restarts(
    options: GatewayOptions, topic: str, tmp_path: Path
) -> None:
    """Rows SP10 to SP13, and SI11: the brokers' own coordinator had the group. A second initialization would
    begin the partitions anew, so records would come again or never. The member goes on through another
    gateway, joins again when it was removed, and another one goes on where it stopped.
    """
    group = new_group()
    fixed = replace(options, share_groups=Coordinators.OURS, listen=free_address())
    direct = options.client_config
    produce(direct, topic, FIRST)
    with ExitStack() as stack:
        shares = stack.enter_context(JavaShares(str(fixed.listen), tmp_path))
        with serving(replace(fixed, share_groups=Coordinators.BROKERS)):
            shares.configure(group, "share.auto.offset.reset=earliest")
            with shares.join(group, topic) as early:
                wait_until(lambda: set(early.deliveries) == {*FIRST}, "the records of before")
            before = state_epochs(options, group, topic)
            assert set(before) == {*range(PARTITIONS)}
        with serving(fixed):
            member = shares.join(group, topic)
            produce(direct, topic, BETWEEN)
            wait_until(lambda: set(member.deliveries) == {*BETWEEN}, "only the records since then")
        with serving(fixed):
            produce(direct, topic, SECOND)
            wait_until(lambda: set(member.deliveries) == {*BETWEEN, *SECOND}, "the records after the restart")
            (line,) = members(shares, group)
            with Wire(str(fixed.listen)) as wire:
                left = wire.ask(
                    ApiKey.ShareGroupHeartbeat, 1, group_id=group, member_id=line[1], member_epoch=-1
                )
            assert left.error_code == 0
            wait_until(lambda: len(members(shares, group)) == 1, "it has joined again")
            produce(direct, topic, THIRD)
            wait_until(lambda: set(member.deliveries) == {*BETWEEN, *SECOND, *THIRD}, "the last records")
            member.close()
            with shares.join(group, topic) as other:
                last = range(300, 300 + PARTITIONS)
                produce(direct, topic, last)
                wait_until(lambda: set(other.deliveries) == {*last}, "only what came since")
        assert state_epochs(options, group, topic) == before
    assert all(times == [1] for times in member.deliveries.values())
