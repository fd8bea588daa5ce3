"""The owner of the topics, by claims on the owner topic. A second coordinator with another folder would
answer every request a second time and differently. So a coordinator claims the topics before it starts
anything. Each claim has a higher epoch than all earlier ones. The claim of the highest epoch is in force. If
two coordinators make claims of the same epoch, the one appended first is in force.

Clock records carry the epoch of the coordinator that appends them. A query fails on a clock record of a
higher epoch than its own (`streaming.query.pipeline`), so a coordinator that lost the topics answers no
request after that record.
"""

import os
import socket
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NoReturn
from uuid import UUID, getnode, uuid4, uuid5

import msgspec
import structlog
from kafka import TopicPartition
from kafka.errors import KafkaError

from checkpoints.metadata import Identity, Moved
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.claims import Claim, Claims
from kafka_why.contract.codec import is_clock_record
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import Closeable
from kafka_why.topic_reader import Record, TopicReader
from streaming.service.request_appender import append_records

# If no clock record comes for this long, and for three of its intervals, no coordinator runs.
SILENCE_MS = 2_000
SILENT_INTERVALS = 3
_POLL_MS = 100
_TIMEOUT_S = 30.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# The interval of queries of the partition's end while no clock record comes. They fail if no broker answers.
_QUERY_S = 1.0
_RECONNECT_MAX_MS = 1_000

log = structlog.get_logger()


class NotOwner(RuntimeError):
    """The topics belong to another coordinator. The message names it and says what to do."""


def owner_id_of(identity: Identity) -> str:
    """Return the owner id of a folder's state. An imported state has its own id, because its old folder is
    another owner.
    """
    if identity.moved is not None:
        return identity.moved.owner_id
    return str(uuid5(UUID(identity.member_id_namespace), "owner"))  # a hash: the namespace is secret


def claim_of(
    identity: Identity,
    folder: Path,
    tick_interval_ms: int,
    *,
    checkpoint: str | None = None,
    above_epoch: int = 0,
) -> Claim:
    """Return this process's claim for the state in `folder`, or in `checkpoint` if that is elsewhere.

    `TopicsOwnership.claim` sets its epoch, above that of the claim in force and above `above_epoch`.
    """
    return Claim(
        epoch=above_epoch,
        claim_id=str(uuid4()),
        owner_id=owner_id_of(identity),
        requests_topic_id=identity.requests_topic_id,
        host=socket.gethostname(),
        pid=os.getpid(),
        folder=str(folder.absolute()),
        since_ms=int(time.time() * 1000),
        tick_interval_ms=tick_interval_ms,
        checkpoint=checkpoint or "",
        place=_folder_id(folder) if checkpoint else "",
    )


def _folder_id(folder: Path) -> str:
    """Return an identifier of the folder, and of the machine since its last boot."""
    status = folder.stat()
    machine = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else f"{getnode():x}"
    return f"{machine}/{status.st_dev}/{status.st_ino}"


def silence_ms(tick_interval_ms: int) -> int:
    """Return the time in ms without a clock record after which a coordinator counts as ended."""
    return max(SILENCE_MS, SILENT_INTERVALS * tick_interval_ms)


class ClockRecords:
    """A watch for the clock records of a running coordinator.

    One partition is enough, because a ticker appends to all of them. All methods raise KafkaError if no
    broker answers, because silence then means nothing.
    """

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        self._client_config = client_config
        self._partition = TopicPartition(layout.requests_topic, 0)
        self._reader = _reader(client_config)
        # True if the next `wait_for_record` continues where the last one ended, without a record.
        self._continues = False

    def is_new_topic(self) -> bool:
        """Return True if the requests topic has never had a record."""
        return not self._reader.ends([self._partition])[self._partition]

    def wait_for_record(self, timeout_s: float) -> bool:
        """Wait for a clock record and return True. Return False if none is appended within `timeout_s`.

        If the last call returned False, records since that call count, too.
        """
        if not self._continues:
            self._reader.start(end=[self._partition])
        self._continues = False
        give_up_s = time.monotonic() + timeout_s
        queried_s = time.monotonic()
        while True:
            if any(is_clock_record(record.key, record.value) for record in self._reader.poll(_POLL_MS)):
                return True
            now_s = time.monotonic()
            if now_s > min(give_up_s, queried_s + _QUERY_S):
                self._reader.ends([self._partition])  # raises KafkaError if no broker answers
                queried_s = time.monotonic()
            if now_s > give_up_s:
                self._continues = True
                return False

    def reconnect(self) -> None:
        """Continue with a new connection. Raises KafkaError, and then keeps the old one."""
        reader = _reader(self._client_config)
        self._reader.close()
        self._reader, self._continues = reader, False

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()


class TopicsOwnership(Closeable):
    """One coordinator's ownership of the topics: `claim` them, then call `find_successor` regularly.

    Not safe for threads. All methods except `find_successor` raise KafkaError if no broker answers.
    """

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        self._client_config = client_config
        self._layout = layout
        self._partition = TopicPartition(layout.owner_topic, 0)
        self._claims = Claims()
        self._own_claim: Claim | None = None  # with its epoch, once `claim` has succeeded
        self._reader = _reader(client_config)
        self._reader.start(beginning=[self._partition])

    @property
    def epoch(self) -> int:
        """The epoch of this coordinator's claim."""
        assert self._own_claim is not None
        return self._own_claim.epoch

    def claim_in_force(self, requests_topic_id: str) -> Claim | None:
        """Return the claim in force on this requests topic, after reading the owner topic to its end.

        A claim with another topic id is for a deleted topic of the same name. Its owner's state does not
        belong to this topic.
        """
        self._read_to_end()
        claim_in_force = self._claims.in_force()
        return (
            claim_in_force
            if claim_in_force and claim_in_force.requests_topic_id == requests_topic_id
            else None
        )

    def claim(
        self, wanted: Claim, *, take_over: bool, moved: Moved | None = None, silent: Claim | None = None
    ) -> None:
        """Make this claim and set its epoch. Raises NotOwner.

        Topics of another folder are claimed only with `take_over`, and only while no coordinator runs on
        them. `moved` is the origin of an imported state: the topics of the folder that it came from may be
        claimed, unless a coordinator ran there after the export. `silent` is a claim whose coordinator does
        not run, as a standby has found (`streaming.service.ownership.lease`). Its end is not waited for
        again.
        """
        claim_in_force = self.claim_in_force(wanted.requests_topic_id)
        self._check_claimable(claim_in_force, wanted, moved, take_over=take_over, silent=silent)
        latest = self._claims.in_force()  # also if it is on a deleted topic of the same name
        epoch = max(latest.epoch if latest else 0, wanted.epoch) + 1
        self._own_claim = msgspec.structs.replace(wanted, epoch=epoch)
        self._append({self._own_claim.claim_id: self._own_claim})
        self._read_to_end()
        winner = self._claims.in_force()
        if winner is None or winner.claim_id != self._own_claim.claim_id:
            self._append({self._own_claim.claim_id: None})
            self._own_claim = None
            raise NotOwner(f"another coordinator has just claimed the topics: {winner}")
        if claim_in_force and claim_in_force.owner_id != wanted.owner_id:
            log.warning("topics taken over", before=str(claim_in_force), now=str(self._own_claim))
        self._append(
            {claim_id: None for claim_id in self._claims.ids() if claim_id != self._own_claim.claim_id}
        )

    def reconnect(self) -> None:
        """Read the owner topic again with a new connection. Raises KafkaError, and then keeps the old one."""
        reader = _reader(self._client_config)
        self._reader.close()
        self._reader, self._claims = reader, Claims()
        self._reader.start(beginning=[self._partition])

    def release(self) -> None:
        """Mark the claim as released, because the coordinator has stopped, so that a standby need not wait
        for silence.
        """
        if self._own_claim is not None and self.confirm_successor() is None:
            self._append(
                {self._own_claim.claim_id: msgspec.structs.replace(self._own_claim, is_released=True)}
            )

    def find_successor(self) -> Claim | None:
        """Return the claim that has replaced this coordinator's, or None. Never waits."""
        try:
            self._apply_records(self._reader.poll(0))
        except KafkaError as error:
            log.warning("the owner topic cannot be read", error=repr(error))
        return self._claims.after(self.epoch)

    def confirm_successor(self) -> Claim | None:
        """Return the claim that has replaced this coordinator's, or None, after reading the topic to
        its end.
        """
        self._read_to_end()
        return self._claims.after(self.epoch)

    def close(self) -> None:
        """Close the connection. The claim stays, because the topics belong to the folder."""
        self._reader.close()

    def _check_claimable(
        self,
        claim_in_force: Claim | None,
        wanted: Claim,
        moved: Moved | None,
        *,
        take_over: bool,
        silent: Claim | None,
    ) -> None:
        """Raise NotOwner unless the topics may be claimed. The other arguments are those of `claim`."""
        if claim_in_force is None:
            # A running coordinator may have lost the owner topic, or one may have claimed the topics
            # meanwhile.
            if self._is_running(wanted.tick_interval_ms, is_claimed=False):
                self._refuse(self.claim_in_force(wanted.requests_topic_id))
            return
        if is_same_folder(claim_in_force, wanted):
            return  # the folder's lock ensures that no other coordinator works in it
        is_silent = claim_in_force.is_released or (
            silent is not None and silent.claim_id == claim_in_force.claim_id
        )
        if not is_silent and self._is_running(claim_in_force.tick_interval_ms, is_claimed=True):
            self._refuse(self.claim_in_force(wanted.requests_topic_id))
        check_state(claim_in_force, wanted, moved, take_over=take_over)

    def _refuse(self, claim_in_force: Claim | None) -> NoReturn:
        """Raise NotOwner because the coordinator of this claim, or one without a claim, is running."""
        if claim_in_force is None:
            raise NotOwner(f"a coordinator that made no claim runs on these topics. {_STOP_IT}")
        raise NotOwner(f"these topics belong to a coordinator that is running: {claim_in_force}. {_STOP_IT}")

    def _is_running(self, tick_interval_ms: int, *, is_claimed: bool) -> bool:
        """Return True if clock records are being appended. Wait for one."""
        with closing(ClockRecords(self._client_config, self._layout)) as clock:
            # A claimed topic may still be empty, because an owner starts its clock a moment after its claim.
            if not is_claimed and clock.is_new_topic():
                return False
            return clock.wait_for_record(silence_ms(tick_interval_ms) / 1000)

    def _append(self, claims: dict[str, Claim | None]) -> None:
        """Append claims by their ids, or a tombstone for None, to the owner topic. Raises KafkaError."""
        if not claims:
            return
        records = [
            {
                "key": key.encode(),
                "value": None if claim is None else msgspec.json.encode(claim),
                "partition": 0,
            }
            for key, claim in claims.items()
        ]
        append_records(self._client_config, self._layout.owner_topic, records)

    def _read_to_end(self) -> None:
        ends = self._reader.ends([self._partition])
        self._apply_records(self._reader.read_to(ends, timeout_ms=round(_TIMEOUT_S * 1000)))

    def _apply_records(self, records: Iterable[Record]) -> None:
        for record in records:
            if not self._claims.apply(record.offset, record.key, record.value):
                log.warning("a record of the owner topic is not a claim", offset=record.offset)


def is_same_folder(claim: Claim, other: Claim) -> bool:
    """Return True if both claims are of the same state and of the same folder on the same machine."""
    state_and_folder = (claim.owner_id, claim.host, claim.folder, claim.place)
    return state_and_folder == (other.owner_id, other.host, other.folder, other.place)


def check_state(claim_in_force: Claim, wanted: Claim, moved: Moved | None, *, take_over: bool) -> None:
    """Raise NotOwner if the topics belong to the state of another folder and may not be claimed for the state
    of `wanted`. The other arguments are those of `TopicsOwnership.claim`.
    """
    if take_over:
        return
    if moved is not None and claim_in_force.owner_id == moved.from_owner_id:
        if claim_in_force.since_ms > moved.exported_at_ms:
            raise NotOwner(f"the old folder was in use after the export: {claim_in_force}. {_EXPORT_AGAIN}")
    elif claim_in_force.owner_id != wanted.owner_id:
        raise NotOwner(f"these topics belong to the state of another folder: {claim_in_force}. {_TAKE_OVER}")


_STOP_IT = (
    "Two would answer every request twice, and differently. Stop that one first, or give this one topics of "
    "its own (--prefix)"
)
_EXPORT_AGAIN = (
    "Export it again and import that into a new folder; only if that state is lost, start with "
    "--take-over-topics, which answers the requests since the export again"
)
_TAKE_OVER = (
    "No coordinator runs there now. Start with that folder; only if it is lost, start with "
    "--take-over-topics. That makes this folder the owner for good: where it is a new one, all requests that "
    "the topic still has are read and answered again, members have to join again under new ids, and offsets "
    "that members committed are not known any more (group-coordinator groups can set them)"
)


def _reader(client_config: ClientConfig) -> TopicReader:
    return TopicReader(client_config, reconnect_max_ms=_RECONNECT_MAX_MS)
