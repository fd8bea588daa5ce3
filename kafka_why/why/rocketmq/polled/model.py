"""The data of polls of a RocketMQ group. All times are milliseconds since the epoch.

A `broker` is named by the broker's name and id, such as `broker-a/0`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from kafka_why.contract.rocketmq.requests import RETRY_GROUP_TOPIC_PREFIX, MessageModel, MessageQueue
from kafka_why.rocketmq_group import subscription_text
from kafka_why.wording import number_list

ALL_QUEUES = -1
"""The queue id with which a client in pop mode names all queues of a broker."""


class PolledConnection(Struct, frozen=True, order=True):
    """A client's connection to a broker."""

    client_id: str
    address: str
    language: str
    version: int  # ordinal of RocketMQ's MQVersion


class BrokerView(Struct, frozen=True, kw_only=True):
    """One broker's view of the group (GET_CONSUMER_CONNECTION_LIST)."""

    broker: str
    connections: list[PolledConnection] = []
    message_model: str | None = None
    consume_type: str | None = None
    subscriptions: dict[str, str] = {}  # by topic, the filter in the last heartbeat of any client
    error: str | None = None  # set if the broker gave no answer


class HeldQueue(Struct, frozen=True):
    """A queue that a client holds."""

    queue: MessageQueue  # in pop mode, with the id ALL_QUEUES, all queues of a broker
    consumed_ms: int | None = None  # when the client last consumed a message
    cached: int = 0  # number of messages that are fetched but not consumed


class ClientAnswer(Struct, frozen=True, kw_only=True):
    """A client's answer to GET_CONSUMER_RUNNING_INFO, which `broker` forwarded to the client."""

    client_id: str
    broker: str
    subscriptions: dict[str, str] = {}  # filters by topic
    held: list[HeldQueue] = []
    message_model: str | None = None
    strategy: str | None = None  # name of a Java class
    version: str | None = None
    started_ms: int | None = None
    pops: bool = False  # True in pop mode: the broker assigns queues, and clients share them
    error: str | None = None  # set if there is no answer
    is_silent: bool = False  # True if the client did not answer the broker in time

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that the client holds, without retry topics, which every client has."""
        return sorted(
            one.queue for one in self.held if not one.queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        )


class QueueOffsets(Struct, frozen=True):
    """The offsets of a queue."""

    queue: MessageQueue
    stored: int | None  # the group's offset at the broker; None if it has none
    end: int  # of the queue

    @property
    def behind(self) -> int:
        """The number of messages from the stored offset to the end, or 0 without a stored offset."""
        return 0 if self.stored is None else max(self.end - self.stored, 0)


class GroupPoll(Struct, frozen=True, kw_only=True):
    """The result of one poll of a group."""

    group_id: str
    at_ms: int
    views: list[BrokerView]
    clients: list[ClientAnswer] = []
    queues: list[MessageQueue] = []  # readable queues of the group's topics
    offsets: list[QueueOffsets] = []
    notes: list[str] = []  # name what is missing

    @property
    def answered_views(self) -> list[BrokerView]:
        """The views of the brokers that answered."""
        return [view for view in self.views if view.error is None]

    @property
    def relevant_views(self) -> list[BrokerView]:
        """The views of brokers that gave no answer, or that have connections or queues of the group."""
        names = {queue.broker_name for queue in self.queues}
        return [
            view
            for view in self.views
            if view.error or view.connections or view.broker.rpartition("/")[0] in names
        ]

    @property
    def client_ids(self) -> list[str]:
        """The distinct client ids, sorted."""
        return sorted({c.client_id for view in self.views for c in view.connections})

    @property
    def answers(self) -> list[ClientAnswer]:
        """The answers of the clients that answered."""
        return [client for client in self.clients if client.error is None]

    @property
    def is_broadcasting(self) -> bool:
        """True if all known message models are BROADCASTING, so that every client reads all queues."""
        return self.message_models == {MessageModel.BROADCASTING}

    @property
    def divides_queues(self) -> bool:
        """True if the clients divide the queues by their strategies."""
        return not self.is_broadcasting and not any(client.pops for client in self.answers)

    @property
    def message_models(self) -> set[str]:
        """The different message models that brokers and clients name."""
        models = [view.message_model for view in self.answered_views]
        return {model for model in (*models, *(c.message_model for c in self.answers)) if model}

    @property
    def topics(self) -> dict[str, list[str]]:
        """The topics in the brokers' views and the clients' answers, with all their filters."""
        filters_by_topic: dict[str, list[str]] = {}
        tables = [view.subscriptions for view in self.views]
        for table in (*tables, *(client.subscriptions for client in self.answers)):
            for topic, expression in table.items():
                if expression not in filters_by_topic.setdefault(topic, []):
                    filters_by_topic[topic].append(expression)
        return dict(sorted(filters_by_topic.items()))

    def connections(self, client_id: str) -> tuple[str, list[str]]:
        """Return the broker to which the client has the most connections, and their addresses."""
        addresses = {
            view.broker: [c.address for c in view.connections if c.client_id == client_id]
            for view in self.views
        }
        broker = max(addresses, key=lambda name: len(addresses[name]), default="")
        return broker, sorted(addresses.get(broker, []))

    def duplicates(self) -> dict[str, tuple[str, list[str]]]:
        """Return the `connections` of each client id with several connections to one broker."""
        duplicate_ids = {
            client_id
            for view in self.views
            for client_id, number in Counter(c.client_id for c in view.connections).items()
            if number > 1
        }
        return {client_id: self.connections(client_id) for client_id in sorted(duplicate_ids)}

    def client_text(self, client_id: str) -> str:
        """Return a text such as `worker-1 (10.0.0.1:5 at broker-a/0)`."""
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
    """A fault of a group."""

    kind: SymptomKind
    reason: str
    to_do: str
    since_ms: int | None = None  # earliest time at which the fault can have begun
    client_ids: list[str] = []
    queues: list[MessageQueue] = []


def most_serious_first(symptoms: Iterable[Symptom]) -> list[Symptom]:
    """Return the symptoms in the order of `SymptomKind`."""
    return sorted(symptoms, key=lambda symptom: list(SymptomKind).index(symptom.kind))


class PollReport(Struct, frozen=True, kw_only=True, tag_field="protocol", tag="RocketMQ"):
    """A report on a group from polls."""

    group_id: str
    symptoms: list[Symptom]  # the most serious first
    poll: GroupPoll  # the newest
    # By client id, the queues that the client's strategy gives it. Clients with an unknown share are omitted.
    shares: dict[str, list[MessageQueue]]
    polled_before_ms: int | None  # time of the earlier poll that was compared; None if there was none


def queues_text(queues: Collection[MessageQueue]) -> str:
    """Return a text such as `orders 0-3 7 of broker-a, 0-1 of broker-b`."""
    ids_by_topic_and_broker: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(queues):
        ids_by_topic_and_broker.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(
            queue.queue_id
        )
    return "; ".join(
        f"{topic} " + ", ".join(f"{_numbers_text(ids)} of {broker}" for broker, ids in brokers.items())
        for topic, brokers in ids_by_topic_and_broker.items()
    )


def _numbers_text(queue_ids: list[int]) -> str:
    return "all" if ALL_QUEUES in queue_ids else number_list(queue_ids)


def subscriptions_text(subscriptions: Mapping[str, str]) -> str:
    """Return the topics with their filters, without retry topics, which every client has."""
    texts = [
        subscription_text(topic, expression)
        for topic, expression in sorted(subscriptions.items())
        if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
    ]
    return ", ".join(texts) or "nothing"
