"""A client of the classic protocol, which behaves as Kafka's consumer does.

An eager client revokes all partitions before it joins, a cooperative one those that it is no longer assigned.
The leader assigns. A client that loses its generation loses its partitions.
"""

from dataclasses import dataclass, field

from assignors.kafka import ASSIGNORS
from kafka_why.contract.kafka.requests import MemberAssignment
from kafka_why.contract.kafka.responses import (
    AnyResponse,
    JoinGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
)
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    MemberSubscription,
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

RETRIED = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


@dataclass
class ClassicConsumer:
    """A client of the classic protocol. `uses` are the partitions that it reads, by topic name.

    `must_join` and `must_sync` say that the next request is a JoinGroup or a SyncGroup. `synced_generation`
    is the generation of the last assignment.
    """

    number: int
    group_id: str
    instance_id: str | None
    names: tuple[str, ...]
    protocols: tuple[str, ...]
    api_version: int
    member_id: str = ""
    generation: int = -1
    synced_generation: int = -1
    protocol_name: str | None = None
    is_running: bool = False
    must_join: bool = True
    must_sync: bool = False
    led_members: list[JoinGroupMember] = field(default_factory=list)
    uses: set[TopicPartition] = field(default_factory=set)
    awaited_request: str | None = None

    @property
    def is_cooperative(self) -> bool:
        return self.protocols[0] == "cooperative-sticky"

    def start(self) -> None:
        self.stop()
        self.is_running = True

    def stop(self) -> None:
        self.is_running, self.member_id, self.awaited_request = False, "", None
        self.lose_generation()

    def lose_generation(self) -> None:
        """Lose the partitions together with the generation."""
        self.generation, self.synced_generation, self.uses = -1, -1, set()
        self.must_join, self.must_sync = True, False

    def metadata(self) -> bytes:
        owned = tuple(sorted(self.uses)) if self.is_cooperative else ()
        generation = self.generation if self.generation >= 0 else None
        return encode_subscription(Subscription(self.names, None, owned, generation))

    def handle_answer(self, response: AnyResponse) -> None:
        """Handle an answer as Kafka's consumer does."""
        error = response.error_code
        if error is ErrorCode.NONE:
            return self._handle_success(response)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            assert isinstance(response, JoinGroupResponse)
            self.member_id = response.member_id
        elif error in RETRIED:
            self.must_join, self.must_sync = True, False
        elif error in LOST:
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self.lose_generation()
        else:
            self.stop()  # such an error is fatal
        return None

    def _handle_success(self, response: AnyResponse) -> None:
        match response:
            case JoinGroupResponse():
                self.member_id, self.generation = response.member_id, response.generation_id
                self.synced_generation = -1
                self.protocol_name = response.protocol_name
                is_leader = response.leader == response.member_id and not response.skip_assignment
                self.led_members = response.members if is_leader else []
                self.must_join, self.must_sync = False, True
            case SyncGroupResponse():
                data = response.assignment
                assigned = set(decode_assignment(data).partitions) if data else set()
                # A cooperative client that had to revoke partitions joins again to report that.
                self.must_join, self.must_sync = self.is_cooperative and not self.uses <= assigned, False
                self.uses, self.synced_generation = assigned, self.generation

    def assignments(self, images: dict[str, TopicImage]) -> list[MemberAssignment]:
        """Return the client's assignments if it is the leader, else none."""
        if not self.led_members:
            return []
        subscriptions = {
            member.member_id: MemberSubscription(
                decode_subscription(member.metadata), member.group_instance_id
            )
            for member in self.led_members
        }
        counts = {name: image.partitions for name, image in images.items()}
        assigned = ASSIGNORS[self.protocol_name or ""].assign(counts, subscriptions)
        return [MemberAssignment(id_, encode_assignment(Assignment(tuple(p)))) for id_, p in assigned.items()]
