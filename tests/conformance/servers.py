"""Two coordinators under the same settings: a real broker's own, and ours behind a gateway on that broker, or
another broker's.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import UUID

from kafka import KafkaConsumer, TopicPartition
from kafka.protocol.api_key import ApiKey

from embedded.broker import EmbeddedBroker
from embedded.jars import jar_paths
from gateway.authorization.sources import AclOptions
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.limits import Limits
from gateway.net.server import GatewayOptions
from gateway.security.authentication import ListenerSecurity
from gateway.service import serving
from gateway.upstream.connections import Address
from gateway.upstream.share_groups import Coordinators
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import unpack
from kafka_why.contract.layout import TopicLayout
from streaming.service.starts import Options
from tests.conformance.acls import PASSWORD, REFRESH_S, SUPER_USERS, USERS, Rule, set_acls, user
from tests.conformance.connection import Connection
from tests.conformance.normalise import Answer
from tests.conformance.player import Player
from tests.conformance.script import Case
from tests.conformance.told import OURS, TOPICS, Told
from tests.e2e.harness import QUICK_SPARK, coordinating, create_topic, new_layout, read_topic, settle
from tests.harness.transactions import TV1, Producer, Wire
from tests.harness.users_listener import users_file, users_listener

_COMMON = {
    "group.min.session.timeout.ms": "2000",
    "group.max.session.timeout.ms": "600000",
    "group.max.size": "3",
    "group.consumer.min.session.timeout.ms": "2000",
    # A member that a script leaves in peace is not to expire, however slow the machine is.
    "group.consumer.session.timeout.ms": "600000",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.size": "4",
    "group.share.min.session.timeout.ms": "2000",
    "group.share.session.timeout.ms": "600000",
    "group.share.max.session.timeout.ms": "600000",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.assignment.interval.ms": "0",
    "group.share.max.assignment.interval.ms": "600000",
    "group.share.max.size": "4",
    "group.streams.min.session.timeout.ms": "2000",
    "group.streams.session.timeout.ms": "600000",
    "group.streams.max.session.timeout.ms": "600000",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.max.size": "4",
    # No pass of retention runs during a case, because it would remove groups without offsets.
    "offsets.retention.check.interval.ms": str(2**31 - 1),
}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "plain": {**_COMMON, "group.initial.rebalance.delay.ms": "0"},
    "delayed": {
        **_COMMON,
        "group.initial.rebalance.delay.ms": "8000",
        "group.consumer.migration.policy": "upgrade",
    },
    "secured": {
        **_COMMON,
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.migration.policy": "disabled",
    },
}
"""The settings of both sides, by the name that a case asks for."""

SECURED = "secured"
"""The name of the settings with which clients authenticate, and have the ACLs of their case."""

NEWEST_KAFKA = "4.4"
VERSIONS: Mapping[str, Callable[[], list[Path] | None]] = {
    NEWEST_KAFKA: lambda: None,
    "4.3": lambda: jar_paths("broker_4_3"),
}
"""The jars of Kafka's broker by its version, None for those of the embedded broker."""

# One coordinator thread, so that answers leave in the order in which they are given.
_ONE_OF_EACH = {
    "offsets.topic.num.partitions": "1",
    "num.network.threads": "1",
    # The broker looks so often for transactions that are over their timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}

# The number of cases played at once. A case waits mostly for the coordinator's batches, not for other cases.
AT_ONCE = 128


@dataclass(frozen=True)
class Played:
    """A case and each side's answers to its steps. `rules` are the rows that our answers and history name."""

    case: Case
    kafkas: Sequence[Answer]
    ours: Sequence[Answer]
    rules: frozenset[str]


@dataclass(frozen=True)
class Side:
    """One of the two coordinators: `name` is `kafka`, `ours`, or `other` for another broker's. `topic_ids`
    are by the topics' names.
    """

    name: str
    address: Address
    topic_ids: Mapping[str, UUID]

    def told(self, prefix: str, case: Case) -> Told:
        """Return what the clients of a case know of it before their first request."""
        return Told(prefix, dict(self.topic_ids), self.name, totals=case.totals, loose=case.loose)

    def prefix(self, run: str, case: int, play: int = 0) -> str:
        """Return the prefix of the group ids of a case. Both sides' groups may have their state at one
        broker, so their ids differ.
        """
        return f"{run}-k{case}x{play}-" if self.name == _KAFKA else f"{run}-{case}-"


_KAFKA, _OTHER = "kafka", "other"
_VERSIONS = ApiKey.ApiVersions, 4
_SOFTWARE = {"client_software_name": "conformance", "client_software_version": "1"}


@dataclass(frozen=True)
class Servers:
    """Both coordinators, and the topics of ours, or None if it is Kafka's, too. `admin` is the broker's
    address for an administrator, who does not authenticate. With `is_secured` clients do.
    """

    admin: Address
    kafka: Side
    ours: Side
    layout: TopicLayout | None
    is_secured: bool

    def play(self, cases: Sequence[Case]) -> list[Played]:
        """Play cases concurrently at both sides. The slow ones come last, so that no case delays them."""
        quick, slow = ([case for case in cases if case.slow is slow] for slow in (False, True))
        return self._play(quick) + self._play(slow)

    def _play(self, cases: Sequence[Case]) -> list[Played]:
        run = uuid.uuid4().hex[:8]
        prefixes = [self.ours.prefix(run, number) for number in range(len(cases))]
        if self.is_secured:
            asyncio.run(self._set_acls(cases, run))
        answers = asyncio.run(self._play_all(cases, run))
        rules = self._rules(prefixes)
        return [
            Played(case, kafkas, ours, rules[prefix])
            for case, prefix, (kafkas, ours) in zip(cases, prefixes, answers, strict=True)
        ]

    async def _play_all(
        self, cases: Sequence[Case], run: str
    ) -> list[tuple[Sequence[Answer], Sequence[Answer]]]:
        room = asyncio.Semaphore(AT_ONCE)

        async def both(number: int, case: Case) -> tuple[Sequence[Answer], Sequence[Answer]]:
            async with room:
                login = partial(_login, number) if self.is_secured else None
                plays = [(self.ours, 0), *((self.kafka, play) for play in range(case.kafkas_plays))]
                players = [
                    Player(
                        side.address.host,
                        side.address.port,
                        side.told(side.prefix(run, number, play), case),
                        login,
                    )
                    for side, play in plays
                ]
                ours, *kafkas = await asyncio.gather(*(player.play(case) for player in players))
                return promised(kafkas, ours)

        return await asyncio.gather(*(both(number, case) for number, case in enumerate(cases)))

    async def _set_acls(self, cases: Sequence[Case], run: str) -> None:
        rules = [
            (number, side.told(side.prefix(run, number, play), case), Rule.parse(line))
            for number, case in enumerate(cases)
            for side, plays in ((self.ours, 1), (self.kafka, case.kafkas_plays))
            for play in range(plays)
            for line in case.acls
        ]
        await set_acls(self.admin, self.ours.address, rules, run)

    def _rules(self, prefixes: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return the rows of docs/rules.md that our answers and history name, by the case's prefix."""
        if self.layout is None:
            return dict.fromkeys(prefixes, frozenset())
        settle(ClientConfig(str(self.admin)), self.layout)
        found: dict[str, set[str]] = {prefix: set() for prefix in prefixes}
        for topic in (self.layout.responses_topic, self.layout.events_topic):
            for record in read_topic(ClientConfig(str(self.admin)), topic):
                for encoded in unpack(record.value or b"{}"):
                    answer = json.loads(encoded)
                    prefix = "-".join(str(answer.get("group_id", "")).split("-")[:2]) + "-"
                    if prefix in found and answer.get("rule"):
                        found[prefix].add(answer["rule"])
        return {prefix: frozenset(rules) for prefix, rules in found.items()}


def promised(
    kafkas: Sequence[Sequence[Answer]], ours: Sequence[Answer]
) -> tuple[Sequence[Answer], Sequence[Answer]]:
    """Return Kafka's answers and ours without the values that differ among Kafka's own plays."""
    pairs: list[tuple[Answer, Answer]] = []
    for own, *answers in zip(ours, *kafkas, strict=True):
        varying = {path for answer in answers for path in answer if len({a.get(path) for a in answers}) > 1}
        pair = [{path: side[path] for path in side if path not in varying} for side in (answers[0], own)]
        pairs.append((pair[0], pair[1]))
    return [kafka for kafka, _ in pairs], [own for _, own in pairs]


def _login(number: int, client: str) -> tuple[str, str]:
    return user(number, client), PASSWORD


@contextmanager
def running(
    folder: Path, settings: Mapping[str, str], *, secured: bool = False, version: str = NEWEST_KAFKA
) -> Iterator[Servers]:
    """Start a broker of this version, a coordinator and a gateway, all with these Kafka settings. With
    `secured`, clients authenticate at the broker's second listener and at the gateway, which both check the
    cluster's ACLs.
    """
    with ExitStack() as stack:
        ports, kafka, more = users_listener(USERS, SUPER_USERS) if secured else (None, None, {})
        broker = EmbeddedBroker(
            folder / "broker",
            ports=ports,
            overrides={**settings, **_ONE_OF_EACH, **more},
            classpath=VERSIONS[version](),
        )
        topic_ids = _ready(stack.enter_context(broker))
        servers = broker.client_config
        layout = new_layout()
        options = Options(servers, folder / "coordinator", layout, settings=settings, spark=QUICK_SPARK)
        stack.enter_context(coordinating(options))
        # These clients do not retry, and a coordinator whose JVM has just started may take longer than 3 s.
        patient = Limits(member_held_s=ANSWER_TIMEOUT_MS / 1000)
        wanted = GatewayOptions(
            servers, layout, Address("127.0.0.1", 0), limits=patient, share_groups=Coordinators.OURS
        )
        if secured:
            wanted = replace(
                wanted,
                security=ListenerSecurity.read(None, None, users_file(folder, USERS)),
                acls=AclOptions(super_users=SUPER_USERS, interval_s=REFRESH_S),
            )
        gateway = stack.enter_context(serving(wanted))
        asyncio.run(_ask_versions(gateway))
        admin = Address.parse(str(servers))
        sides = Side(_KAFKA, kafka or admin, topic_ids), Side(OURS, gateway, topic_ids)
        yield Servers(admin, *sides, layout, secured)


@contextmanager
def two_brokers(folder: Path, settings: Mapping[str, str], version: str, other: str) -> Iterator[Servers]:
    """Start a broker of each of these versions with these settings: Kafka's coordinator on both sides."""
    with ExitStack() as stack:
        sides = {}
        for side, jars in ((_KAFKA, version), (_OTHER, other)):
            overrides = {**settings, **_ONE_OF_EACH}
            broker = EmbeddedBroker(folder / side, overrides=overrides, classpath=VERSIONS[jars]())
            topic_ids = _ready(stack.enter_context(broker))
            sides[side] = Side(side, Address.parse(broker.bootstrap_servers), topic_ids)
        yield Servers(sides[_KAFKA].address, sides[_KAFKA], sides[_OTHER], None, False)


def _ready(broker: EmbeddedBroker) -> Mapping[str, UUID]:
    """Create the topics of the scripts and start the broker's coordinators. Return the topics' ids."""
    for topic, partitions in TOPICS.items():
        create_topic(broker.client_config, topic, partitions, {})
    _wake(broker.bootstrap_servers)
    return _topic_ids(broker.bootstrap_servers)


async def _ask_versions(gateway: Address) -> None:
    """Send ApiVersions, as every client does first. From it a gateway learns the brokers' features."""
    connection = Connection(*await asyncio.open_connection(gateway.host, gateway.port))
    try:
        answer = await connection.ask(*_VERSIONS, "versions", _SOFTWARE)
    finally:
        await connection.close()
    assert answer is not None


def _wake(servers: str) -> None:
    """Make the broker start its coordinators, which happens when the first client looks for one."""
    with closing(
        KafkaConsumer(bootstrap_servers=servers, group_id="wake", enable_auto_commit=False)
    ) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        consumer.committed(TopicPartition("orders", 0))
    with Wire(servers) as wire:
        Producer(wire, "wake", TV1).init()


def _topic_ids(servers: str) -> dict[str, UUID]:
    with closing(kafka_clients.admin(ClientConfig(servers))) as admin:
        described = admin.describe_topics(list(TOPICS))
    return {topic["name"]: UUID(str(topic["topic_id"])) for topic in described}
