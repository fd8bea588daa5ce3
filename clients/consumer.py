"""A consumer in a group of the coordinator: joins the group, consumes its partitions, gives them up again.

It is a real consumer for tests, the demo and the command line. It reads records through kafka-python's
KafkaConsumer with a manual assignment; only this coordinator manages the group. The member looks up the
topics' partitions when it leads a rebalance. Partitions that are added later wait for the next rebalance.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from assignors.kafka.api import TopicPartition
from assignors.kafka.consumer_protocol import PROTOCOL_TYPE
from assignors.kafka.server_side import is_for_coordinator
from clients.committer import Committer
from clients.coordinator_client import CoordinatorClient
from clients.membership import Consume, GoOn, Membership, Next, Rejoin, Stop, Sync
from clients.partition_text import partition_list
from clients.pending import ClientError
from state.kafka.requests import LeavingMember
from state.kafka.responses import AnyResponse, HeartbeatResponse, JoinGroupResponse, SyncGroupResponse

_POLL_MS = 100
_LEAVE_TIMEOUT_S = 5.0
_FLUSH_TIMEOUT_S = 10.0

# The argument has kafka-python's ConsumerRecords of one poll. When the call returns, they count as processed.
Process = Callable[[Sequence[Any]], None]


class ConsumerStopped(RuntimeError):
    """The consumer cannot go on. The message has the reason."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """A consumer's group, topics and settings. `assignors` come best first.

    With `group_instance_id` None the member is dynamic.
    """

    group_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    assignors: tuple[str, ...] = ("range", "roundrobin")
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    heartbeat_interval_ms: int = 3_000


@dataclass(frozen=True, slots=True)
class _Answered:
    """The outcome of a round's JoinGroup or SyncGroup."""

    round_: int
    outcome: AnyResponse | ClientError


@dataclass(frozen=True, slots=True)
class _HeartbeatAnswered:
    """The outcome of a heartbeat, with the member id and generation it was sent with."""

    member_id: str
    generation: int
    outcome: AnyResponse | ClientError


@dataclass(frozen=True, slots=True)
class _StopRequested:
    reason: str


class GroupConsumer:
    """One member. `run` blocks until `stop` is called or the member cannot go on.

    Only this member may use `consumer`. It has no group, and auto_offset_reset "earliest": a partition
    without a committed offset is read from its beginning. `process` gets the records of each poll. If
    `process` raises, the member leaves the group and `run` raises the same exception. `tell` gets a line of
    text for each event.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        client: CoordinatorClient,
        consumer: KafkaConsumer,
        process: Process,
        tell: Callable[[str], None],
    ) -> None:
        self._options = options
        self._client = client
        self._consumer = consumer
        self._process = process
        self._tell = tell
        self._committer = Committer(client, options.group_id, options.group_instance_id, tell)
        self._membership = Membership(
            options.topics, options.assignors, self._partition_counts, options.group_instance_id
        )
        # A SimpleQueue, because its `put` is safe in a signal handler.
        self._inbox: SimpleQueue[_Answered | _HeartbeatAnswered | _StopRequested] = SimpleQueue()
        self._heartbeats = _Heartbeats(options.heartbeat_interval_ms)
        self._round = 0
        self._partitions: tuple[TopicPartition, ...] = ()
        self._rejoin_at_s: float | None = None
        self._rejoin_reason = ""
        self._stop_reason: str | None = None

    def stop(self, reason: str = "the consumer was stopped") -> None:
        """Make `run` leave the group and return. Safe in a signal handler and from any thread."""
        self._inbox.put(_StopRequested(reason))

    def run(self) -> None:
        """Join the group and consume until `stop`. Raises ConsumerStopped on a fatal answer."""
        self._rejoin(Rejoin("the consumer starts"))
        self._heartbeats.start()
        try:
            while self._stop_reason is None:
                self._turn()
        finally:
            self._heartbeats.stop()
            self._give_up(self._stop_reason or "the consumer failed")
            self._leave(self._stop_reason or "the consumer failed")

    def _turn(self) -> None:
        """Run the loop once: consume if there are partitions, then handle one answer or send a due join."""
        wait_s: float | None = None  # no limit is needed: each request gets an answer or times out
        if self._rejoin_at_s is not None:
            wait_s = max(0.0, self._rejoin_at_s - time.monotonic())
        elif self._partitions:
            self._consume()
            wait_s = 0.0
        try:
            message = self._inbox.get(timeout=wait_s)
        except Empty:
            if self._rejoin_at_s is not None:
                self._send_join()
            return
        match message:
            case _StopRequested():
                self._stop_reason = message.reason
            case _HeartbeatAnswered():
                self._act(self._on_heartbeat_answered(message))
            case _Answered() if message.round_ == self._round:
                self._act(self._on_answered(message.outcome))

    def _on_answered(self, outcome: AnyResponse | ClientError) -> Next:
        match outcome:
            case JoinGroupResponse():
                return self._membership.joined(outcome)
            case SyncGroupResponse():
                return self._membership.synced(outcome)
            case _:
                assert isinstance(outcome, ClientError)
                return self._membership.failed(outcome)

    def _on_heartbeat_answered(self, beaten: _HeartbeatAnswered) -> Next:
        if isinstance(beaten.outcome, HeartbeatResponse):
            return self._membership.beaten(beaten.outcome, beaten.member_id, beaten.generation)
        # The next heartbeat may succeed. The coordinator decides how many may be missed.
        self._tell(f"no answer to a heartbeat: {beaten.outcome}")
        return GoOn()

    def _act(self, next_: Next) -> None:
        match next_:
            case Sync():
                self._send_sync(next_)
            case Consume():
                self._act(self._start_consuming(next_.partitions))
            case Rejoin():
                self._rejoin(next_)
            case Stop():
                raise ConsumerStopped(next_.reason)
            case GoOn():
                pass

    def _rejoin(self, rejoin: Rejoin) -> None:
        self._heartbeats.pause()
        self._give_up(rejoin.reason)
        self._round += 1
        self._rejoin_at_s = time.monotonic() + rejoin.back_off_ms / 1000
        self._rejoin_reason = rejoin.reason

    def _send_join(self) -> None:
        self._rejoin_at_s = None
        options, membership = self._options, self._membership
        future = self._client.join(
            options.group_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=membership.protocols,
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.rebalance_timeout_ms,
            member_id=membership.member_id,
            group_instance_id=options.group_instance_id,
            reason=self._rejoin_reason,
            partitions_per_topic=self._counts_for_coordinator(),
        )
        self._expect(future)

    def _send_sync(self, sync: Sync) -> None:
        membership = self._membership
        role = "leader" if membership.is_leader else "follower"
        self._tell(f"joined generation {membership.generation} as {role}, member id {membership.member_id}")
        # Heartbeats begin before the assignment arrives, as in Kafka's client since KAFKA-10134.
        self._heartbeats.resume(partial(self._send_heartbeat, membership.member_id, membership.generation))
        future = self._client.sync(
            self._options.group_id,
            generation_id=membership.generation,
            member_id=membership.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=membership.protocol_name,
            assignments=sync.assignments,
            group_instance_id=self._options.group_instance_id,
        )
        self._expect(future)

    def _send_heartbeat(self, member_id: str, generation: int) -> None:
        """Send a heartbeat. The heartbeat thread calls this."""
        future = self._client.heartbeat(
            self._options.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=self._options.group_instance_id,
        )
        future.add_done_callback(
            lambda done: self._inbox.put(_HeartbeatAnswered(member_id, generation, _outcome(done)))
        )

    def _expect(self, future: Future[Any]) -> None:
        round_ = self._round
        future.add_done_callback(lambda done: self._inbox.put(_Answered(round_, _outcome(done))))

    def _start_consuming(self, partitions: tuple[TopicPartition, ...]) -> Next:
        """Start consuming the partitions, each where its last owner stopped."""
        self._tell(f"got partitions {partition_list(partitions) or '(none)'}")
        if not partitions:
            return GoOn()
        try:
            known = self._committer.fetch(partitions)
        except ClientError as error:
            return self._membership.failed(error)
        self._committer.identify(self._membership.member_id, self._membership.generation)
        self._partitions = partitions
        self._consumer.assign([KafkaTopicPartition(*p) for p in partitions])
        for partition in partitions:
            if partition in known:
                self._consumer.seek(KafkaTopicPartition(*partition), known[partition])
            else:
                self._consumer.seek_to_beginning(KafkaTopicPartition(*partition))
        return GoOn()

    def _give_up(self, reason: str) -> None:
        """Stop consuming. Processed records are committed first, so that the next owner starts after them."""
        if not self._partitions:
            return
        self._consumer.unsubscribe()
        if not self._committer.flush(_FLUSH_TIMEOUT_S):
            self._tell("a commit had no answer in time; records may be processed again")
        self._tell(f"lost partitions {partition_list(self._partitions)}: {reason}")
        self._partitions = ()

    def _consume(self) -> None:
        polled: Mapping[Any, Sequence[Any]] = self._consumer.poll(timeout_ms=_POLL_MS)
        records = [record for batch in polled.values() for record in batch]
        if not records:
            return
        self._process(records)
        self._committer.commit({TopicPartition(r.topic, r.partition): r.offset + 1 for r in records})

    def _leave(self, reason: str) -> None:
        """Leave the group. A static member keeps its place until its session expires instead (KIP-345)."""
        member_id = self._membership.member_id
        if not member_id or self._options.group_instance_id is not None:
            return
        leaving = LeavingMember(member_id=member_id, reason=reason)
        try:
            self._client.leave(self._options.group_id, [leaving]).result(_LEAVE_TIMEOUT_S)
        except TimeoutError:
            self._tell("left the group, without waiting for the answer any longer")
        except ClientError as error:
            self._tell(f"could not leave the group: {error}")
        else:
            self._tell(f"left the group: {reason}")

    def _counts_for_coordinator(self) -> dict[str, int]:
        """Return the topics' partition counts if the coordinator may have to assign, else an empty dict."""
        options = self._options
        needs_them = any(is_for_coordinator(name) for name in options.assignors)
        return self._partition_counts(frozenset(options.topics)) if needs_them else {}

    def _partition_counts(self, topics: frozenset[str]) -> dict[str, int]:
        return {topic: len(self._consumer.partitions_for_topic(topic)) for topic in sorted(topics)}


class _Heartbeats:
    """A thread that sends heartbeats at a fixed rate unless paused, without waiting for answers."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1000
        self._changed = threading.Condition()
        self._beat: Callable[[], None] | None = None
        self._next_s = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> None:
        with self._changed:
            self._beat = None

    def resume(self, beat: Callable[[], None]) -> None:
        """Call `beat` after one interval, and then once in each interval."""
        with self._changed:
            self._beat = beat
            self._next_s = time.monotonic() + self._interval_s
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while beat := self._wait_until_due():
            try:
                beat()
            except ClientError:
                return  # the client was closed

    def _wait_until_due(self) -> Callable[[], None] | None:
        """Wait until the next heartbeat is due and return its function, or None after `stop`."""
        with self._changed:
            while not self._stopped:
                now_s = time.monotonic()
                if self._beat is None:
                    self._changed.wait()
                elif self._next_s > now_s:
                    self._changed.wait(self._next_s - now_s)
                else:
                    self._next_s = max(self._next_s + self._interval_s, now_s)
                    return self._beat
        return None


def _outcome(done: Future[Any]) -> AnyResponse | ClientError:
    error = done.exception()
    assert error is None or isinstance(error, ClientError), "the client raises nothing else"
    if error is not None:
        return error
    response: AnyResponse = done.result()
    return response
