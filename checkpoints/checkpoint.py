"""A coordinator's checkpoint: Spark's own, and beside it the files that must survive with it.

Its content:

    <checkpoint>/spark/               Spark's own checkpoint of the query
    <checkpoint>/identity.json        the cluster, topic and namespace that this state belongs to
    <checkpoint>/owners/<epoch>.json  the configurations, outages and last committed batch of the owner
                                      of the topics with this epoch

Each owner writes its own file (`streaming.service.ownership.owner`), which starts from the previous owner's.
A process that lost the topics while it was suspended may still write, but only into a file that is not read.
"""

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeVar
from uuid import uuid4
from zlib import crc32

import msgspec
from msgspec.structs import replace

from checkpoints.metadata import CommittedBatch, Epoch, Files, Identity, KnownOutage, OwnerRecord
from checkpoints.spark_logs import last_batch, planned_ends
from kafka_why.contract.messages import SettingValue
from kafka_why.local_files import FolderError, LocalFiles
from state.protocol import Outage

# The number of outages to keep. A group whose last event is before all of them does not learn of earlier
# outages.
OUTAGES_KEPT = 100
IDENTITY = "identity.json"
OWNERS = "owners"
_SUMMED = re.compile(rb'(.*),"crc32":(\d+)\}', re.DOTALL)

T = TypeVar("T")

MOVE = (
    "Move it into a new folder with 'group-coordinator state export' and 'group-coordinator state import' "
    "(docs/recovery.md, 'Moving the state')"
)


class Checkpoint:
    """A coordinator's checkpoint. Call `own` before any method that writes, except `pin` and `create`."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._epoch: int | None = None

    @classmethod
    def at(cls, path: Path) -> Self:
        """Return the checkpoint in a folder of this machine."""
        return cls(LocalFiles(path))

    def __str__(self) -> str:
        return self.files.uri

    @property
    def spark_uri(self) -> str:
        """The URI of Spark's own checkpoint, in the form that Spark accepts."""
        return f"{self.files.uri}/spark"

    def pin(
        self,
        found: Identity,
        shards: int | None = None,
        state_partitions: int | None = None,
        *,
        to_change: str = MOVE,
    ) -> Identity:
        """Return the identity of this state. The first call pins `found`, later calls return the pinned one.

        The state must have these `shards` and `state_partitions`. None means the pinned number, or that of
        `found` if none is pinned. Raises FolderError if the topic is not the one that the state belongs to,
        or if a number differs. `to_change` is that error's advice. The namespace is not compared, because the
        pinned one stays in force.
        """
        pinned = self.pinned()
        if pinned is None:
            found = replace(
                found,
                shards=shards or found.shards,
                state_partitions=state_partitions or found.state_partitions,
            )
            if self.files.create(IDENTITY, _encoded(found)):
                return found
            pinned = self.identity()  # another coordinator created it first
        if shards not in (None, pinned.shards):
            raise FolderError(
                f"the state in {self} has {pinned.shards} shards of a partition, not {shards}. {to_change}"
            )
        if state_partitions not in (None, pinned.state_partitions):
            raise FolderError(
                f"the state in {self} is kept in {pinned.state_partitions} partitions, not "
                f"{state_partitions}. {to_change}"
            )
        is_new_topic = not pinned.requests_topic_id
        if is_new_topic:
            pinned = replace(pinned, requests_topic_id=found.requests_topic_id)
        changed = [
            f"{name} was {was!r} and is {now!r}"
            for name in ("cluster_id", "requests_topic", "requests_topic_id", "request_partitions")
            if (was := getattr(pinned, name)) != (now := getattr(found, name))
        ]
        if changed:
            raise FolderError(
                f"the state in {self} belongs to another topic: {'; '.join(changed)}. "
                "Group offsets and partitions have no meaning there. Use another folder, or restore that "
                f"topic. For another number of partitions: {to_change}"
            )
        if is_new_topic:
            self._write(IDENTITY, pinned)
        return pinned

    def create(self, identity: Identity, record: OwnerRecord) -> None:
        """Write the files of an imported state. None of them may exist."""
        self._write(IDENTITY, identity)
        self._write(_name(0), record)

    def rewrite(self, record: OwnerRecord) -> None:
        """Replace the newest owner's record. The coordinator must not run."""
        self._write(_name(self.newest_owner()), record)

    def identity(self) -> Identity:
        """Return the pinned identity. Raises FolderError if there is no state."""
        identity = self.pinned()
        if identity is None:
            raise FolderError(f"{self} has no state of a coordinator")
        return identity

    def pinned(self) -> Identity | None:
        """Return the pinned identity, None if there is no state yet. Raises FolderError."""
        return self._read(IDENTITY, Identity)

    def newest_owner(self) -> int:
        """Return the highest epoch of an owner that wrote here, 0 before any did."""
        return max(self._owners(), default=0)

    def own(self, epoch: int) -> None:
        """Write as the owner with this epoch from now on. Raises FolderError if a later owner wrote here."""
        owners = self._owners()
        self._check_newest(max(owners, default=0), epoch)
        record = self.record()
        self._epoch = epoch
        self._write(_name(epoch), record)
        for earlier in [owner for owner in owners if owner < epoch][:-1]:  # keep the last one
            self.files.remove(_name(earlier))

    def check_owner(self, epoch: int) -> None:
        """Raise FolderError if a later owner than this one wrote here."""
        self._check_newest(self.newest_owner(), epoch)

    def _check_newest(self, newest: int, epoch: int) -> None:
        if newest > epoch:
            raise FolderError(f"{self} has the record of a later owner, epoch {newest}; this one is {epoch}")

    def record(self) -> OwnerRecord:
        """Return this owner's record, or the newest owner's if this object owns nothing."""
        if self._epoch is not None:
            return self._read(_name(self._epoch), OwnerRecord) or OwnerRecord()
        return self._read(_name(self.newest_owner()), OwnerRecord) or OwnerRecord()

    def store_epoch(
        self,
        settings: Mapping[str, SettingValue],
        skip: list[str],
        code_version: str,
        *,
        after_ms: int,
        from_batch: int | None = None,
    ) -> list[Epoch]:
        """Store the configuration of this start, in force after `after_ms`, and return all configurations.

        The new configuration applies to batches from `from_batch` on, by default those that are not planned
        yet. `after_ms` is the time of the latest event, 0 without one.

        The records in `skip`, which no committed batch has handled, are skipped from the first uncommitted
        batch on, because that batch fails at them.
        """
        record = self.record()
        epochs = _with_skipped(record.epochs, skip, self.last_batch("commits") + 1)
        if not epochs:
            epochs = [Epoch(0, settings, skip, code_version)]  # it covers every batch
        elif ((latest := epochs[-1]).settings, latest.code_version) != (settings, code_version):
            from_batch = self.last_batch("offsets") + 1 if from_batch is None else from_batch
            # Records that were appended in an outage are handled at its end.
            ends_ms = [known.outage.until_ms for known in record.outages if known.from_batch < from_batch]
            after_ms = max(after_ms, latest.after_ms, *ends_ms)
            # No batch and no event has used the configurations that are removed.
            epochs = [e for e in epochs if e.from_batch < from_batch or e.after_ms < after_ms]
            epochs.append(Epoch(from_batch, settings, latest.skip, code_version, after_ms))
        if epochs != record.epochs:
            self._save(replace(record, epochs=epochs))
        return epochs

    def store_outage(self, after_ms: int, until_ms: int, from_batch: int | None = None) -> list[KnownOutage]:
        """Store the outage from `after_ms` to `until_ms`, which ends now, and return all outages.

        `after_ms` is the latest time at which a coordinator acted. The new outage applies to batches from
        `from_batch` on, by default those that are not planned yet. It absorbs an earlier outage that neither
        a batch nor a replica has passed.
        """
        record = self.record()
        from_batch = self.last_batch("offsets") + 1 if from_batch is None else from_batch
        outages = [
            known
            for known in record.outages
            if known.from_batch < from_batch or known.outage.until_ms <= after_ms
        ]
        # Records that were appended in an outage are handled at its end.
        after_ms = max([after_ms, *(known.outage.until_ms for known in outages)])
        if after_ms < until_ms:
            outages.append(KnownOutage(from_batch, Outage(after_ms, until_ms)))
        self._save(replace(record, outages=outages[-OUTAGES_KEPT:]))
        return outages[-OUTAGES_KEPT:]

    def check_committed(self, topic: str) -> None:
        """Raise FolderError if Spark's checkpoint has lost a committed batch or changed its plan.

        Without this check Spark would silently read requests again, or skip some.
        """
        committed = self.record().committed
        if committed is None:
            return
        last = self.last_batch("offsets")
        if last >= committed.batch:
            self._check_plan(committed, topic)
            return
        ends = self.planned_ends(last, topic)
        again = sum(max(0, end - ends.get(partition, 0)) for partition, end in committed.ends.items())
        raise FolderError(
            f"the checkpoint {self.spark_uri} has lost batches: batch {committed.batch} was committed, and "
            f"the last one in {self.spark_uri}/offsets is {last if last >= 0 else 'none'}. {again} records "
            f"of {topic} that were handled would be handled a second time. Put the lost files "
            "back, or use the last copy of the whole folder"
        )

    def _check_plan(self, committed: CommittedBatch, topic: str) -> None:
        planned = self.planned_ends(committed.batch, topic)
        if not planned or not committed.ends or planned == committed.ends:
            return
        name = f"{self.spark_uri}/offsets/{committed.batch}"
        ends = msgspec.json.encode({topic: {str(p): end for p, end in sorted(committed.ends.items())}})
        raise FolderError(
            f"{name} was replaced by another driver after batch {committed.batch} was committed: it says "
            f"that the batch read {topic} up to {planned}, but it read up to {committed.ends}. The next "
            f"batch would begin at the wrong place. Make {ends.decode()} the last line of that file, and "
            f"remove its checksum file .{committed.batch}.crc if there is one"
        )

    def pin_committed(self, batch: int, topic: str, ends: Mapping[int, int] | None = None) -> None:
        """Store a committed batch and the offsets up to which it read. Raises FolderNotWritable.

        If `ends` is None, the offsets are those of its plan.
        """
        committed = CommittedBatch(batch, dict(self.planned_ends(batch, topic) if ends is None else ends))
        self._save(replace(self.record(), committed=committed))

    def planned_ends(self, batch: int, topic: str) -> dict[int, int]:
        """Return the offsets, by partition, up to which (exclusive) a batch reads. The result is empty if the
        batch is not planned.
        """
        return planned_ends(self.files, batch).get(topic, {})

    def last_batch(self, log: str) -> int:
        """Return the last batch in Spark's `offsets` (planned) or `commits` (committed) log, -1 if there is
        none.
        """
        return last_batch(self.files, log)

    def _owners(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self.files.names(OWNERS) if name.endswith(".json"))
        return sorted(int(name) for name in names if name.isdigit())

    def _save(self, record: OwnerRecord) -> None:
        assert self._epoch is not None, "nothing is written without the ownership"
        self._write(_name(self._epoch), record)

    def _read(self, name: str, of: type[T]) -> T | None:
        try:
            content = self.files.read(name)
        except FileNotFoundError:
            return None
        try:
            _check_checksum(content)
            return msgspec.json.decode(content, type=of)
        except (msgspec.DecodeError, ValueError) as error:
            raise FolderError(
                f"{self.files.uri}/{name} is damaged, or of another version: {error}. Put this file back"
            ) from error

    def _write(self, name: str, content: object) -> None:
        self.files.write(name, _encoded(content))


def new_namespace() -> str:
    """Return a new secret for `Identity.member_id_namespace`."""
    return str(uuid4())


def _encoded(content: object) -> bytes:
    """Return the JSON with the CRC-32 of the other fields as its last field."""
    # JSON with a flipped bit may still be valid, so it needs a checksum.
    encoded = msgspec.json.encode(content)
    return msgspec.json.format(b'%b,"crc32":%d}' % (encoded[:-1], crc32(encoded)))


def _check_checksum(content: bytes) -> None:
    summed = _SUMMED.fullmatch(msgspec.json.format(content, indent=-1))
    if summed is None:
        raise ValueError("it has no checksum")
    if crc32(summed[1] + b"}") != int(summed[2]):
        raise ValueError("it does not match its checksum")


def _name(epoch: int) -> str:
    return f"{OWNERS}/{epoch}.json"


def _with_skipped(epochs: list[Epoch], skip: list[str], from_batch: int) -> list[Epoch]:
    """Return `epochs` so changed that batches from `from_batch` on also skip the records `skip`."""
    new = [record for record in skip if epochs and record not in epochs[-1].skip]
    if not new:
        return epochs
    before = [e for e in epochs if e.from_batch < from_batch]
    after = [e for e in epochs if e.from_batch >= from_batch]
    if before and (not after or after[0].from_batch > from_batch):
        after.insert(0, replace(before[-1], from_batch=from_batch))
    return before + [replace(e, skip=[*e.skip, *new]) for e in after]


# Checks that this code may rerun batches of earlier code (docs/decisions/0021-upgrades.md). A planned,
# uncommitted batch may have written a part of its output. It runs again at the next start with the same
# outcome, so only code with the same rules may run it.


SAME_RULES = ("0.1.0",)
"""The versions of this project with the same rules as this one, which is the last of them. A version that
changes any output (responses, history, views, offsets, state) restarts this list with itself.
`tests/unit/checkpoints/test_histories.py` finds such a change.
"""


def code_version() -> str:
    """Return the version of this code. It is stored with every configuration."""
    return importlib.metadata.version("spark-group-coordinator")


def check_planned(checkpoint: Checkpoint, version: str) -> None:
    """Raise FolderError if code with other rules planned a batch that is not committed.

    Call it before anything is written, so that the other version can still start.
    """
    batch = checkpoint.last_batch("offsets")
    if batch <= checkpoint.last_batch("commits"):
        return
    planned_by = next(
        (e.code_version for e in reversed(checkpoint.record().epochs) if e.from_batch <= batch), None
    )
    if planned_by is None or planned_by in SAME_RULES:
        return
    raise FolderError(
        f"batch {batch} was planned by version {planned_by} and is not committed. This is version "
        f"{version}, which decides requests by other rules, so it could answer requests of that batch a "
        f"second time and differently. Start version {planned_by} on this folder once more, with "
        "--tick-interval-ms 5000 --no-gateway, and stop it in order when it is ready: between two batches "
        "none is planned. Repeat that if this error comes again (docs/recovery.md, 'Upgrade')"
    )


def check_answered(checkpoint: Checkpoint, version: str, *, is_ahead: bool) -> None:
    """Raise FolderError if a replica of code with other rules gave answers that no batch has planned.
    `is_ahead` is True if the last replica answered requests after the last planned batch.
    """
    if not is_ahead:
        return
    answered_by = next((epoch.code_version for epoch in reversed(checkpoint.record().epochs)), None)
    if answered_by is None or answered_by in SAME_RULES:
        return
    raise FolderError(
        f"version {answered_by} was ended before its query had handled all requests that its replica had "
        f"answered. This is version {version}, which decides requests by other rules, so it could answer "
        f"them a second time and differently. Start version {answered_by} on this folder once more, with "
        "--no-replica --no-gateway, and stop it in order when it is ready (docs/recovery.md, 'Upgrade')"
    )
