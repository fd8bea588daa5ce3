"""Members of groups of the consumer protocol (KIP-848).

By ConsumerGroupHeartbeat a member joins with epoch 0, acknowledges partitions that it gets or gives up, and
leaves. It commits and fetches by its epoch. The first member of each group is static: it leaves for a while,
and comes back as another process would, with a new member id.
"""

from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from bench.load.consumers import Partitions, by_topic, given_by
from bench.load.frames import CONSUMER_HEARTBEAT, EPOCH_COMMIT, EPOCH_FETCH
from tests.faults.campaign.load.classic import (
    NONE,
    REBALANCE_MS,
    TOPIC,
    UNKNOWN_MEMBER_ID,
    ClassicMember,
    Rejoin,
)
from tests.faults.campaign.load.gateway import GatewayTransport

FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH = 82, 110, 113
LEAVES, LEAVES_FOR_A_WHILE = -1, -2
NOTHING: Partitions = frozenset()
_OFFSETS_APART = 10
"""More than there are members in a group: no two of them commit one offset."""


@dataclass
class ConsumerMember(ClassicMember):
    """One member. `epoch` and `owned` are what it was answered last."""

    churn: ClassVar[float] = 0.04  # others need not stop where one comes or goes
    transport: GatewayTransport
    epoch: int = 0
    owned: Partitions = NOTHING

    @property
    def instance_id(self) -> str | None:
        """None unless the member is static."""
        return f"{self.group}-{self.number}" if self.number == 0 else None

    async def _enter(self) -> int:
        """Join, or go on where an answer was lost, by a heartbeat that says everything."""
        if not self.member_id:
            self.member_id = str(UUID(int=self.random.getrandbits(128)))
            self._forget()
        while True:
            is_answered = await self._beat(
                rebalance_timeout_ms=REBALANCE_MS,
                subscribed_topic_names=[TOPIC],
                topic_partitions=by_topic(self.owned),
            )
            if is_answered:
                return self.epoch

    async def _heartbeat(self, generation: int) -> None:
        await self._beat()

    async def _beat(self, **fields: Any) -> bool:
        """Send heartbeats until what the member owns is what it was given. Returns whether there was no
        error.
        """
        while True:
            answer = await self._ask(self._ask_heartbeat(self.epoch, **fields))
            await self._check(answer.error_code)
            if answer.error_code != NONE:
                return False
            self.epoch = answer.member_epoch
            if answer.assignment is None or given_by(answer) == self.owned:
                return True
            self.owned = given_by(answer)
            fields = {"topic_partitions": by_topic(self.owned)}

    async def _ask_heartbeat(self, epoch: int, **fields: Any) -> Any:
        return await self.transport.ask(
            CONSUMER_HEARTBEAT,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            **fields,
        )

    async def _commit(self, generation: int) -> None:
        if not self.owned:
            return await self._heartbeat(generation)
        partition = self._any_owned()
        offset = next(self.offsets) * _OFFSETS_APART + self.number
        self.meter.sent(self.group, partition, offset)
        error = await self._ask(self._commit_offset(partition, offset))
        if error == NONE:
            self.meter.acknowledged(self.group, partition, offset)
        await self._check(error)

    async def _commit_offset(self, partition: int, offset: int) -> int:
        committed = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
        answer = await self.transport.ask(
            EPOCH_COMMIT,
            group_id=self.group,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            topics=[{"name": TOPIC, "partitions": [{**committed, "committed_metadata": ""}]}],
        )
        return int(answer.topics[0].partitions[0].error_code)

    async def _fetch(self) -> None:
        if self.owned:
            await self._check(await self._ask(self._fetch_offset(self._any_owned())))

    async def _fetch_offset(self, partition: int) -> int:
        group = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "topics": [{"name": TOPIC, "partition_indexes": [partition]}],
        }
        answer = await self.transport.ask(EPOCH_FETCH, groups=[group])
        return int(answer.groups[0].error_code)

    def _any_owned(self) -> int:
        return self.random.choice(sorted(index for _, index in self.owned))

    async def _ask_to_leave(self) -> None:
        is_static = self.instance_id is not None
        try:
            await self._ask(self._ask_heartbeat(LEAVES_FOR_A_WHILE if is_static else LEAVES))
        finally:
            self.member_id = ""

    async def _check(self, error: int) -> None:
        """See `ClassicMember`. A member that is fenced joins again with its id, and owns nothing before."""
        if error == FENCED_MEMBER_EPOCH:
            self._forget()
            raise Rejoin(error)
        if error == FENCED_INSTANCE_ID:
            raise Rejoin(UNKNOWN_MEMBER_ID)
        if error != STALE_MEMBER_EPOCH:
            await super()._check(error)

    def _forget(self) -> None:
        self.epoch, self.owned = 0, NOTHING
