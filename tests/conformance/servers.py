"""Two coordinators under the same settings: a real broker's own, and ours behind a gateway on that broker."""

import asyncio
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import UUID

from kafka import TopicPartition

from connections import kafka_clients
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from gateway.authorization.sources import AclOptions
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.limits import Limits
from gateway.net.options import GatewayOptions
from gateway.security.authentication import Security
from gateway.service import serving
from gateway.upstream.connections import Address
from records.layout import TopicLayout
from records.pack import unpack
from streaming.service.options import Options
from tests.conformance.acls import (
    PASSWORD,
    REFRESH_S,
    SUPER_USERS,
    USERS,
    Rule,
    set_acls,
    user,
)
from tests.conformance.normalise import Answer
from tests.conformance.player import Player
from tests.conformance.script import Case
from tests.conformance.told import TOPICS, Told
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
class Servers:
    """The addresses of both coordinators, and the topics of ours. `admin` is the broker's address for an
    administrator, who does not authenticate. With `is_secured` clients do.
    """

    admin: Address
    kafka: Address
    ours: Address
    layout: TopicLayout
    topic_ids: Mapping[str, UUID]
    is_secured: bool

    def play(self, cases: Sequence[Case]) -> list[Played]:
        """Play cases concurrently at both sides. The slow ones come last, so that no case delays them."""
        quick, slow = ([case for case in cases if case.slow is slow] for slow in (False, True))
        return self._play(quick) + self._play(slow)

    def _play(self, cases: Sequence[Case]) -> list[Played]:
        run = uuid.uuid4().hex[:8]
        prefixes = [f"{run}-{number}-" for number in range(len(cases))]
        if self.is_secured:
            asyncio.run(self._set_acls(cases, prefixes, run))
        answers = asyncio.run(self._play_all(cases, prefixes))
        rules = self._rules(prefixes)
        return [
            Played(case, kafkas, ours, rules[prefix])
            for case, prefix, (kafkas, ours) in zip(cases, prefixes, answers, strict=True)
        ]

    async def _play_all(
        self, cases: Sequence[Case], prefixes: Sequence[str]
    ) -> list[tuple[Sequence[Answer], Sequence[Answer]]]:
        room = asyncio.Semaphore(AT_ONCE)

        async def both(number: int, case: Case, prefix: str) -> tuple[Sequence[Answer], Sequence[Answer]]:
            async with room:
                login = partial(_login, number) if self.is_secured else None
                plays = [prefix, *(f"{prefix}{play}-" for play in range(1, case.kafkas_plays))]
                sides = [("ours", self.ours, prefix), *(("kafka", self.kafka, play) for play in plays)]
                players = [
                    Player(at.host, at.port, Told(own, self.topic_ids, side, totals=case.totals), login)
                    for side, at, own in sides
                ]
                ours, *kafkas = await asyncio.gather(*(player.play(case) for player in players))
                return promised(kafkas, ours)

        return await asyncio.gather(
            *(both(number, *item) for number, item in enumerate(zip(cases, prefixes, strict=True)))
        )

    async def _set_acls(self, cases: Sequence[Case], prefixes: Sequence[str], run: str) -> None:
        rules = [
            (number, Told(prefix, self.topic_ids), Rule.parse(line))
            for number, (case, prefix) in enumerate(zip(cases, prefixes, strict=True))
            for line in case.acls
        ]
        await set_acls(self.admin, self.ours, rules, run)

    def _rules(self, prefixes: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return the rows of docs/rules.md that our answers and history name, by the case's prefix."""
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
def running(folder: Path, settings: Mapping[str, str], *, secured: bool = False) -> Iterator[Servers]:
    """Start a broker, a coordinator and a gateway, all with these Kafka settings. With `secured`, clients
    authenticate at the broker's second listener and at the gateway, which both check the cluster's ACLs.
    """
    with ExitStack() as stack:
        ports, kafka, more = users_listener(USERS, SUPER_USERS) if secured else (None, None, {})
        overrides = {**settings, **_ONE_OF_EACH, **more}
        broker = stack.enter_context(EmbeddedBroker(folder / "broker", ports=ports, overrides=overrides))
        servers = broker.client_config
        for topic, partitions in TOPICS.items():
            create_topic(servers, topic, partitions, {})
        _wake(str(servers))
        layout = new_layout()
        options = Options(
            servers,
            folder / "coordinator",
            layout,
            settings=settings,
            spark=QUICK_SPARK,
        )
        stack.enter_context(coordinating(options))
        # These clients do not retry, and a coordinator whose JVM has just started may take longer than 3 s.
        patient = Limits(member_held_s=ANSWER_TIMEOUT_MS / 1000)
        wanted = GatewayOptions(servers, layout, Address("127.0.0.1", 0), limits=patient)
        if secured:
            wanted = replace(
                wanted,
                security=Security.read(None, None, users_file(folder, USERS)),
                acls=AclOptions(super_users=SUPER_USERS, interval_s=REFRESH_S),
            )
        gateway = stack.enter_context(serving(wanted))
        admin = Address.parse(str(servers))
        yield Servers(admin, kafka or admin, gateway, layout, _topic_ids(str(servers)), secured)


def _wake(servers: str) -> None:
    """Make the broker start its coordinators, which happens when the first client looks for one."""
    with closing(kafka_clients.group_consumer(ClientConfig(servers), "wake")) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        consumer.committed(TopicPartition("orders", 0))
    with Wire(servers) as wire:
        Producer(wire, "wake", TV1).init()


def _topic_ids(servers: str) -> dict[str, UUID]:
    with closing(kafka_clients.admin(ClientConfig(servers))) as admin:
        described = admin.describe_topics(list(TOPICS))
    return {topic["name"]: UUID(str(topic["topic_id"])) for topic in described}
