"""Random logs of groups of the consumer protocol (KIP-848), and a model of what their clients use.

The clients behave as Kafka's consumer does: they revoke before they acknowledge, and join anew after an error
that fences them. Answers get lost, clients fall silent, die, return and change their topics, topics grow and
are recreated, and strangers send what no client would. A log is played against the core, so that its requests
have the epochs of that run. Afterwards its rows are a log like any other.
"""

import re
from random import Random
from uuid import UUID

from msgspec import UNSET, structs

from kafka_why.contract.kafka.history import LEAVE_GROUP_MEMBER_EPOCH, LEAVE_GROUP_STATIC_MEMBER_EPOCH
from kafka_why.contract.kafka.requests import (
    AnyRequest,
    ConsumerGroupHeartbeat,
    RegexResolved,
    TopicIdPartitions,
    TopicMetadata,
)
from records.topic_patterns import digest
from state.config import CoordinatorConfig
from state.kafka.consumer_group import ConsumerGroup
from tests.harness.consumer_clients import SUBSCRIPTIONS, Consumer, Partition, common_of
from tests.harness.played_log import INTERVAL_MS, PAUSES_MS, PlayedLog
from tests.harness.random_log import GROUPS


class ConsumerLog(PlayedLog):
    """The play of one log of groups of the consumer protocol."""

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        super().__init__(seed, config)
        groups = self.random.choice((GROUPS[:1], GROUPS[:1], GROUPS[:1], GROUPS[:2]))
        self.clients = [self._client(n, self.random.choice(groups)) for n in range(self.random.randint(1, 7))]
        # From a generator of its own, so that a seed still gives the same logs as before.
        self.may = Random(f"{seed} may").choice((None, None, "foo.*", "ba."))
        for client in self.clients:
            client.may = self.may
        self._oddness = self.random.choice((0.02, 0.1, 0.3))
        self._hurry = self.random.choice((0.3, 0.8, 0.95))

    def _client(self, number: int, group_id: str) -> Consumer:
        names, pattern = self.random.choice(SUBSCRIPTIONS)
        return Consumer(
            number,
            group_id,
            self.random.choice((None, None, None, "i1", "i2")),
            self.random.choice((1, 1, 1, 0)),
            self.random.choice((None, None, "uniform", "range")),
            names,
            pattern if self.random.random() < 0.5 else "",
            is_slow=self.random.random() < 0.1,
        )

    def play(self, moves: int) -> None:
        """Make this many random moves. A longer play begins with the same moves, so that failures shrink."""
        for _ in range(moves):
            self._move()

    def settle(self, rounds: int) -> None:
        """Let every client behave well for this many rounds, while the watcher works and nothing changes."""
        self.cluster.rest()
        for client in self.clients:
            client.is_full = True
        for _ in range(rounds):
            self.pause(INTERVAL_MS)
            self._watch()
            self._round(lossy=False)

    def group(self, group_id: str) -> ConsumerGroup | None:
        group = self.timelines[group_id].group
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    def pause(self, pause_ms: int) -> None:
        self.at_ms += pause_ms

    def _move(self) -> None:
        self.pause(self.random.choice(PAUSES_MS[:5] if self.random.random() < self._hurry else PAUSES_MS))
        if self.random.random() >= self._oddness:
            if self.random.random() < 0.3:
                self._round(lossy=True)
            else:
                self._beat(self.random.choice(self.clients), lossy=True)
            return
        client = self.random.choice(self.clients)
        match self.random.randrange(8):
            case 0:
                self._leave(client)
            case 1:
                client.stop()
            case 2 | 3:
                self._subscribe(client)
            case 4:
                self.cluster.change()
            case 5 | 6:
                self._watch()
            case 7:
                self._send(None, self._stranger(client))

    def _round(self, *, lossy: bool) -> None:
        for client in self.clients:
            self.pause(1)
            self._beat(client, lossy=lossy)

    def _beat(self, client: Consumer, *, lossy: bool) -> None:
        """Send the next request of a client. It starts if it does not run."""
        if not client.is_running:
            client.start()
        in_time = not lossy or (not client.is_slow and self.random.random() < 0.7)
        request = client.request(self.cluster, self.at_ms, in_time=in_time)
        self._send(client, request, lost=lossy and self.random.random() < 0.1)

    def _leave(self, client: Consumer) -> None:
        request = client.leave(for_a_while=self.random.random() < 0.7)
        if request is not None:
            self._send(None, request)

    def _subscribe(self, client: Consumer) -> None:
        """Change the topics of a client. Some clients revoke unwanted partitions before they send it."""
        names, pattern = self.random.choice(SUBSCRIPTIONS)
        client.names, client.pattern = names, pattern if client.api_version else ""
        client.is_full = True
        if not pattern and self.random.random() < 0.5:
            ids = {image.id.bytes for name in names if (image := self.cluster.now.get(name))}
            client.uses = client.assigned = {partition for partition in client.uses if partition[0] in ids}

    def _stranger(self, client: Consumer) -> AnyRequest:
        """Return a request that no client would send, and that does not act for a running client."""
        common = common_of(client) | {"correlation_id": "-1"}
        group = self.group(client.group_id)
        liar = f"liar-{self.random.randrange(2)}"
        member = group.members.get(liar) if group is not None else None
        epoch = 0 if member is None else member.member_epoch + self.random.choice((0, 0, 0, -1, 1))
        owned = (
            []
            if member is None
            else [
                TopicIdPartitions(UUID(bytes=id_), [n for n in numbers if self.random.random() < 0.5])
                for id_, numbers in (member.assigned | member.pending_revocation).items()
            ]
        )
        match self.random.randrange(5):
            case 0:
                return ConsumerGroupHeartbeat(
                    **common, member_id=client.member_id or "nobody", member_epoch=client.epoch + 100
                )
            case 1:
                return ConsumerGroupHeartbeat(
                    **common, member_id=client.member_id or "nobody", member_epoch=LEAVE_GROUP_MEMBER_EPOCH
                )
            case 2:
                return ConsumerGroupHeartbeat(
                    **common,
                    member_id="another",
                    member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH,
                    instance_id=client.instance_id,
                )
        names, pattern = self.random.choice(SUBSCRIPTIONS)
        return ConsumerGroupHeartbeat(
            **common,
            member_id=liar,
            member_epoch=epoch,
            instance_id=client.instance_id if member is None and self.random.random() < 0.3 else None,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=list(names),
            subscribed_topic_regex=pattern,
            topic_partitions=owned if epoch else [],
            topics=self.cluster.images(names),
            checks_topics=UNSET if self.may is None else True,
        )

    def _watch(self) -> None:
        """Send the watcher's requests: topics and pattern results in which groups differ from the cluster."""
        for group_id in GROUPS:
            group = self.group(group_id)
            if group is None:
                continue
            if topics := self._changed_topics(group):
                self._send(None, TopicMetadata(group_id=group_id, topics=topics))
            patterns = {m.subscribed_topic_regex for m in group.members.values()} - {""}
            results = {pattern: self.cluster.resolve(pattern, self.at_ms) for pattern in sorted(patterns)}
            for pattern, checked in group.checked_regexes.items():
                resolved = group.resolved_regexes.get(pattern)
                results[pattern] = structs.replace(results[pattern], seen=digest(results[pattern].topics))
                if resolved is not None and checked.seen == results[pattern].seen:
                    results[pattern] = self.cluster.resolve(pattern, self.at_ms, self.may)
            known_topics = {p: matches.topics for p, matches in group.resolved_regexes.items()}
            if any(known_topics.get(pattern) != sorted(result.topics) for pattern, result in results.items()):
                self._send(None, RegexResolved(group_id=group_id, patterns=results))

    def _send(self, client: Consumer | None, request: AnyRequest, *, lost: bool = False) -> None:
        """Append the request to the log and apply it. After a lost answer a client sends a full request."""
        for effects in self._handle(request):
            for reply in effects.replies:
                if client is not None and not lost:
                    client.handle_answer(reply.response, self.cluster)
        if client is not None and lost:
            client.lose_answer()
        if client is not None:
            self._check_topics(client)
        self._check_use(request.group_id)

    def _check_topics(self, client: Consumer) -> None:
        """Check that after its own request, a member has no topic to which it no longer subscribes by name,
        even if the target is older than the subscription. (The matches of a pattern change without the
        member.)
        """
        group = self.group(client.group_id)
        member = group.members.get(client.member_id) if group is not None else None
        if group is None or member is None or member.subscribed_topic_regex:
            return
        names = {name for id_, name in group.names_by_id().items() if id_ in member.assigned}
        assert names <= set(member.subscribed_topic_names)

    def _check_use(self, group_id: str) -> None:
        """Check that no two members use the same partition, and that the coordinator knows of each use."""
        group = self.group(group_id)
        used: set[Partition] = set()
        for client in self.clients:
            member = group.members.get(client.member_id) if group and client.group_id == group_id else None
            if member is None:
                continue
            held = {
                (id_, n) for p in (member.assigned, member.pending_revocation) for id_ in p for n in p[id_]
            }
            assert client.uses <= held, f"{client.member_id} uses {client.uses - held} that it does not hold"
            assert not used & client.uses, f"{client.member_id} uses {used & client.uses} that others use"
            used |= client.uses
        self._check_rights(group)

    def _check_rights(self, group: ConsumerGroup | None) -> None:
        """Check that no pattern matches a topic that clients may not DESCRIBE, if gateways check rights."""
        if group is not None and self.may is not None:
            matched = {name for resolved in group.resolved_regexes.values() for name in resolved.topics}
            assert all(re.fullmatch(self.may, name) for name in matched)
