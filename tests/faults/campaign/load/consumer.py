"""Members of groups of the consumer protocol (KIP-848).

By ConsumerGroupHeartbeat a member joins with epoch 0, acknowledges partitions that it gets or gives up, and
leaves. It commits and fetches by its epoch. The first member of each group is static: it leaves for a while,
and comes back as another process would, with a new member id.
"""

from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from bench.load.consumers import Partitions, assigned_by, by_topic
from bench.load.frames import CONSUMER_HEARTBEAT, EPOCH_COMMIT, EPOCH_FETCH, Api
from tests.faults.campaign.load.classic import NONE, REBALANCE_MS, UNKNOWN_MEMBER_ID, ClassicMember, Rejoin
from tests.faults.campaign.load.meter import TOPIC

FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH = 82, 110, 113
LEAVES, LEAVES_FOR_A_WHILE = -1, -2
NOTHING: Partitions = frozenset()


@dataclass
class ConsumerMember(ClassicMember):
    """One member. Its epoch and `owned` are what it was answered last."""

    churn: ClassVar[float] = 0.04  # others need not stop where one comes or goes
    commit_api: ClassVar[Api] = EPOCH_COMMIT
    owned: Partitions = NOTHING

    @property
    def instance_id(self) -> str | None:
        """None unless the member is static."""
        return f"{self.group}-{self.number}" if self.number == 0 else None

    async def enter(self) -> None:
        """Join, or go on where an answer was lost, by a heartbeat that says everything."""
        if not self.member_id:
            self.member_id = str(UUID(int=self.random.getrandbits(128)))
            self._forget()
        while not await self._beat(
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=[TOPIC],
            topic_partitions=by_topic(self.owned),
        ):
            pass

    async def heartbeat(self) -> None:
        await self._beat()

    async def _beat(self, **fields: Any) -> bool:
        """Send heartbeats until the member owns what it was given. Return True if there was no error."""
        while True:
            answer = await self._ask_heartbeat(self.generation, **fields)
            await self.check(answer.error_code)
            if answer.error_code != NONE:
                return False
            self.generation = answer.member_epoch
            if answer.assignment is None or assigned_by(answer) == self.owned:
                return True
            self.owned = assigned_by(answer)
            fields = {"topic_partitions": by_topic(self.owned)}

    async def _ask_heartbeat(self, epoch: int, **fields: Any) -> Any:
        return await self.ask(
            CONSUMER_HEARTBEAT,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            **fields,
        )

    async def commit(self) -> None:
        if self.owned:
            await self.commit_of(self._any_owned())
        else:
            await self.heartbeat()

    async def fetch(self) -> None:
        if self.owned:
            group = {
                "group_id": self.group,
                "member_id": self.member_id,
                "member_epoch": self.generation,
                "topics": [{"name": TOPIC, "partition_indexes": [self._any_owned()]}],
            }
            answer = await self.count(self.wire.ask(EPOCH_FETCH, groups=[group]))
            await self.check(answer.groups[0].error_code)

    def _any_owned(self) -> int:
        return self.random.choice(sorted(index for _, index in self.owned))

    async def leave(self) -> None:
        try:
            await self._ask_heartbeat(LEAVES if self.instance_id is None else LEAVES_FOR_A_WHILE)
        finally:
            self.member_id = ""

    async def check(self, error: int) -> None:
        """See `ClassicMember`. A member that is fenced joins again with its id, and owns nothing before."""
        if error == FENCED_MEMBER_EPOCH:
            self._forget()
            raise Rejoin(error)
        if error == FENCED_INSTANCE_ID:
            raise Rejoin(UNKNOWN_MEMBER_ID)
        if error != STALE_MEMBER_EPOCH:
            await super().check(error)

    def _forget(self) -> None:
        self.generation, self.owned = 0, NOTHING
