"""What simulated services share: topics and files in memory, and who owns them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from random import Random

from checkpoints.checkpoint import Checkpoint
from checkpoints.codec import ShardRow
from checkpoints.metadata import Epoch, KnownOutage
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import SettingValue
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup
from state.protocol import Received, cause_of
from state.timeline import StepFunction
from streaming.replica.audit import AnswerDifference
from streaming.replica.terms import ReplicaSeed
from tests.harness.simulated_broker import Broker, EarlyProducer
from tests.harness.simulated_query import MemoryFiles, Store

# A seed may be of a batch that is not the newest.
SEEDS_KEPT = 3


@dataclass
class Notes:
    """When each request was handled, and at which step it was answered: its cause and time."""

    handled_ms: dict[str, int] = field(default_factory=dict)
    answered: dict[str, tuple[str, int]] = field(default_factory=dict)

    def of(self, step: StepFunction) -> StepFunction:
        """Return the step, noted."""

        def noted(
            group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
        ) -> AnyEffects:
            effects = step(group, group_id, event, now_ms, config)
            if isinstance(event, Received):
                self.handled_ms[event.request_id] = now_ms
            for reply in effects.replies:
                self.answered[reply.response.request] = (cause_of(event), now_ms)
            return effects

        return noted


class SimulatedCluster(ABC):
    """What all services share."""

    def __init__(
        self, random: Random, broker: Broker, layout: TopicLayout, shards: int, step: StepFunction
    ) -> None:
        self.random = random
        self.broker = broker
        self.layout = layout
        self.shards = shards
        self.step = step
        self.files = MemoryFiles()
        self.stores = {-1: Store()}
        self.claims = [0]
        self.notes: dict[ReplicaId, Notes] = {}
        self.late: list[EarlyProducer] = []
        """Producers of processes that have ended."""
        self.differences: list[AnswerDifference] = []
        self.happened: dict[str, int] = {}

    def now_ms(self) -> int:
        return self.broker.now_ms

    def seen(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    @abstractmethod
    def next_settings(self) -> dict[str, SettingValue]:
        """Return the settings of the next owner."""

    @abstractmethod
    def others_act(self) -> None:
        """Let everything but the owner act."""

    def seed_of(self, epochs: list[Epoch], outages: list[KnownOutage]) -> ReplicaSeed:
        """Return a seed as `streaming.service.replica.process` does, but not always of the newest batch."""
        checkpoint = Checkpoint(self.files)
        batch = self.random.choice(sorted(self.stores)[-SEEDS_KEPT:])
        rows = [ShardRow(str(shard), *row) for shard, row in self.stores[batch].rows.items()]
        ends = checkpoint.planned_ends(batch, self.layout.requests_topic)
        return ReplicaSeed(
            identity=checkpoint.identity(),
            batch=batch,
            ends=dict(ends) or dict.fromkeys(range(self.layout.request_partitions), 0),
            epochs=epochs,
            outages=outages,
            rows=rows,
        )
