"""Retention deletes requests that no batch has read: the coordinator refuses to go on without them."""

import json
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from kafka import TopicPartition

from clients.coordinator_client import CoordinatorClient
from connections import kafka_clients
from connections.client_config import ClientConfig
from records.layout import TopicLayout
from tests.e2e.harness import stable_member, wait_until
from tests.faults.campaign.cluster import START_TIMEOUT_S, CampaignCluster, command_line, environment
from tests.faults.campaign.judge.topics import read, unpack
from tests.faults.campaign.keeper import Keeper
from tests.faults.campaign.kinds.fault import FaultOutcome

UNREAD, LEFT = 20, 5
"""So many requests are appended while no coordinator runs, and so many of them are left."""


@dataclass(frozen=True)
class RetentionAteRequests:
    """It has topics and a checkpoint of its own, because a coordinator that lost requests must not go on."""

    name: str = "retention ate unread requests"
    weight: float = 0.3

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        prefix = f"eaten-{random.getrandbits(32)}"
        layout = TopicLayout.named(prefix)
        folder = world.folder / prefix
        folder.mkdir()
        arguments = ["run", "--json", "--no-gateway", "--bootstrap-servers", world.servers]
        arguments += ["--prefix", prefix, "--replication-factor", "3", "--data-dir", str(folder / "data")]
        keeper = Keeper("coordinator", folder, command_line(arguments), environment=environment())
        with ExitStack() as stack:
            stack.callback(keeper.stop)
            keeper.start()
            wait_until(lambda: world.has_said_ready(keeper), "the coordinator", START_TIMEOUT_S)
            client = stack.enter_context(
                CoordinatorClient(world.client_config, layout, client_id="eaten", request_timeout_ms=120_000)
            )
            member = stable_member(client, "g")
            with keeper.held_down():
                for _ in range(UNREAD):
                    client.heartbeat("g", generation_id=1, member_id=member.member_id)
                eat(world.servers, layout.requests_topic, random)
            answered = answered_requests(world, layout)
            wait_until(lambda: is_refused(keeper, folder), "a refusal", START_TIMEOUT_S)
            assert answered_requests(world, layout) == answered, "requests behind the gap were answered"
        return FaultOutcome.REFUSED


def eat(servers: str, topic: str, random: Random) -> None:
    """Delete all records but the last few, as retention does."""
    partition = TopicPartition(topic, 0)
    with closing(kafka_clients.reading_consumer(ClientConfig(servers))) as consumer:

        def are_appended() -> bool:
            return bool(consumer.end_offsets([partition])[partition] > UNREAD)

        wait_until(are_appended, "the requests")
        end = consumer.end_offsets([partition])[partition]
    with closing(kafka_clients.admin(ClientConfig(servers))) as admin:
        admin.delete_records({partition: end - random.randint(1, 3)}, timeout_ms=30_000)


def is_refused(keeper: Keeper, folder: Path) -> bool:
    said = keeper.log + "".join(path.read_text() for path in folder.glob("data/coordinator/status.json"))
    return "deleted" in said


def answered_requests(world: CampaignCluster, layout: TopicLayout) -> set[str]:
    """The ids of the requests that were answered, early or by the query. The mark of a start has no value."""
    records = read(world.servers, layout.responses_topic)
    values = [value for record in records if record.value for value in unpack(record.value)]
    return {json.loads(value)["request"] for value in values}


RETENTION = (RetentionAteRequests(),)
