"""A RocketMQ group as polls of its cluster show it. All times are milliseconds since the epoch.

A broker address is a text: the broker's name and id, such as `broker-a/0`.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from kafka_why.contract.rocketmq.queues import RETRY_GROUP_TOPIC_PREFIX, MessageQueue
from kafka_why.contract.rocketmq.requests import MessageModel
from kafka_why.rocketmq_group import subscription_text
from kafka_why.wording import number_list

ALL_QUEUES = -1
"""The number by which a client that pops names all queues of a broker."""


class PolledConnection(Struct, frozen=True, order=True):
    """A client's connection to a broker. `version` is an ordinal of RocketMQ's MQVersion."""

    client_id: str
    address: str
    language: str
    version: int


class BrokerView(Struct, frozen=True, kw_only=True):
    """The group as one broker address has it (GET_CONSUMER_CONNECTION_LIST). `subscriptions` maps a topic to
    the text of its filter, as the last heartbeat of any client set it. With an `error` the broker gave no
    answer.
    """

    broker: str
    connections: list[PolledConnection] = []
    message_model: str | None = None
    consume_type: str | None = None
    subscriptions: dict[str, str] = {}
    error: str | None = None


class HeldQueue(Struct, frozen=True):
    """A queue that a client reads, or with the number ALL_QUEUES pops from. `consumed_ms` is None if it has
    consumed nothing. `cached` is the number of messages that it has fetched and not consumed yet.
    """

    queue: MessageQueue
    consumed_ms: int | None = None
    cached: int = 0


class ClientAnswer(Struct, frozen=True, kw_only=True):
    """A client's answer about itself (GET_CONSUMER_RUNNING_INFO). `broker` passed the request on.

    `strategy` is the name of a Java class. It `pops` if the broker assigns its queues, which clients share.
    With an `error` there is no answer; `is_silent` is True if the broker waited for it in vain.
    """

    client_id: str
    broker: str
    subscriptions: dict[str, str] = {}
    held: list[HeldQueue] = []
    message_model: str | None = None
    strategy: str | None = None
    version: str | None = None
    started_ms: int | None = None
    pops: bool = False
    error: str | None = None
    is_silent: bool = False

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that it holds, without those for retries, which every client has."""
        return sorted(
            one.queue for one in self.held if not one.queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        )


class QueueOffsets(Struct, frozen=True):
    """A queue's offset that the group has stored, None if there is none, and the end of its log."""

    queue: MessageQueue
    stored: int | None
    end: int

    @property
    def behind(self) -> int:
        """The number of messages behind the stored offset, 0 if there is no offset."""
        return 0 if self.stored is None else max(self.end - self.stored, 0)


class GroupPoll(Struct, frozen=True, kw_only=True):
    """One poll of a group. `queues` are the readable queues of its topics. `notes` name what is missing."""

    group_id: str
    at_ms: int
    views: list[BrokerView]
    clients: list[ClientAnswer] = []
    queues: list[MessageQueue] = []
    offsets: list[QueueOffsets] = []
    notes: list[str] = []

    @property
    def answered(self) -> list[BrokerView]:
        """The views of the brokers that answered."""
        return [view for view in self.views if view.error is None]

    @property
    def serving(self) -> list[BrokerView]:
        """The views, without those of brokers that have neither connections nor queues of the group."""
        names = {queue.broker_name for queue in self.queues}
        return [
            view
            for view in self.views
            if view.error or view.connections or view.broker.rpartition("/")[0] in names
        ]

    @property
    def client_ids(self) -> list[str]:
        """The ids of all clients, in order. An id that clients share is there once."""
        return sorted({c.client_id for view in self.views for c in view.connections})

    @property
    def reports(self) -> list[ClientAnswer]:
        """The answers that clients gave."""
        return [client for client in self.clients if client.error is None]

    @property
    def is_broadcasting(self) -> bool:
        """True if every client reads all queues, as far as is known."""
        return self.message_models == {MessageModel.BROADCASTING}

    @property
    def divides_queues(self) -> bool:
        """True if the clients divide the queues, by their strategies."""
        return not self.is_broadcasting and not any(client.pops for client in self.reports)

    @property
    def message_models(self) -> set[str]:
        """The message models that brokers and clients name."""
        models = [view.message_model for view in self.answered]
        return {model for model in (*models, *(c.message_model for c in self.reports)) if model}

    @property
    def topics(self) -> dict[str, list[str]]:
        """The topics of the brokers' views and the clients' answers, with all their filters."""
        found: dict[str, list[str]] = {}
        tables = [view.subscriptions for view in self.views]
        for table in (*tables, *(client.subscriptions for client in self.reports)):
            for topic, expression in table.items():
                if expression not in found.setdefault(topic, []):
                    found[topic].append(expression)
        return dict(sorted(found.items()))

    def connections(self, client_id: str) -> tuple[str, list[str]]:
        """Return the broker with most connections of a client, and the addresses of these connections."""
        at = {
            view.broker: [c.address for c in view.connections if c.client_id == client_id]
            for view in self.views
        }
        broker = max(at, key=lambda name: len(at[name]), default="")
        return broker, sorted(at.get(broker, []))

    def duplicates(self) -> dict[str, tuple[str, list[str]]]:
        """Return each client id with several connections to one broker, the broker, and the addresses."""
        shared = {
            client_id
            for view in self.views
            for client_id, number in Counter(c.client_id for c in view.connections).items()
            if number > 1
        }
        return {client_id: self.connections(client_id) for client_id in sorted(shared)}

    def named(self, client_id: str) -> str:
        """Return a client with its addresses: `worker-1 (10.0.0.1:5 at broker-a/0)`."""
        broker, addresses = self.connections(client_id)
        return f"{client_id} ({' and '.join(addresses)} at {broker})" if addresses else client_id


class SymptomKind(StrEnum):
    """The faults that polls or the history show, the most serious first."""

    DUPLICATE = "DUPLICATE CLIENT ID"
    SUBSCRIPTIONS = "different subscriptions"
    MODELS = "different message models"
    STRATEGIES = "different strategies"
    NO_READER = "queues without a reader"
    TWO_READERS = "queues with several readers"
    SILENT = "clients that do not answer"
    VIEWS = "brokers that see different clients"
    FLAPPING = "clients that come and go"
    EXPIRED = "connections that expired unseen"
    STANDING = "offsets that stand still"
    OFFLINE = "no consumers"


class Symptom(Struct, frozen=True, kw_only=True):
    """A fault, in sentences. `since_ms` is the earliest time at which it is known to be there."""

    kind: SymptomKind
    reason: str
    to_do: str
    since_ms: int | None = None
    client_ids: list[str] = []
    queues: list[MessageQueue] = []


class PollReport(Struct, frozen=True, kw_only=True, tag_field="protocol", tag="RocketMQ"):
    """A report on a group by polls. `shares` has for each client the queues that its strategy gives it, as
    far as that can be computed.
    """

    group_id: str
    symptoms: list[Symptom]
    poll: GroupPoll
    shares: dict[str, list[MessageQueue]]
    polled_before_ms: int | None


def queues_text(queues: Collection[MessageQueue]) -> str:
    """Return queues by topic and broker: `orders 0-3 7 of broker-a, 0-1 of broker-b`."""
    found: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(queues):
        found.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
    return "; ".join(
        f"{topic} " + ", ".join(f"{_numbers(ids)} of {broker}" for broker, ids in brokers.items())
        for topic, brokers in found.items()
    )


def _numbers(queue_ids: list[int]) -> str:
    return "all" if ALL_QUEUES in queue_ids else number_list(queue_ids)


def subscriptions_text(subscriptions: Mapping[str, str]) -> str:
    """Return topics with filters, without the topic for retries, which each client adds."""
    texts = [
        subscription_text(topic, expression)
        for topic, expression in sorted(subscriptions.items())
        if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
    ]
    return ", ".join(texts) or "nothing"
