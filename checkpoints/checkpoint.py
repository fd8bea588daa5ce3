"""A coordinator's checkpoint: Spark's own, and beside it the files that must survive with it.

Its content:

    <checkpoint>/spark/               Spark's own checkpoint of the query
    <checkpoint>/identity.json        the cluster and topic of this state, and the secret of its member ids
    <checkpoint>/owners/<epoch>.json  the configurations, outages and last committed batch, as stored by the
                                      owner with this epoch

An owner is a coordinator that has claimed the topics with an epoch; the highest epoch owns them. An outage is
a span of the log's time without a coordinator, in which no deadline is due.

Each owner writes its own file (`streaming.service.ownership.owner`), which starts as a copy of the previous
owner's. A process that lost the topics while it was suspended may still write, but only into its own file,
which the new owner no longer reads.
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

# The number of outages to keep. A group without an event since before all of them does not learn of the
# outages that were dropped.
OUTAGES_KEPT = 100
IDENTITY = "identity.json"
OWNERS = "owners"
# A JSON object, without spaces, whose last field is `crc32`. `others` lacks the closing brace.
_WITH_CHECKSUM = re.compile(rb'(?P<others>.*),"crc32":(?P<crc32>\d+)\}', re.DOTALL)

T = TypeVar("T")

MOVE = (
    "Move it into a new folder with 'group-coordinator state export' and 'group-coordinator state import' "
    "(docs/recovery.md, 'Moving the state')"
)


class Checkpoint:
    """A coordinator's checkpoint. Call `own` before `store_epoch`, `store_outage` or `store_committed`.

    `owner_epoch` and "the epoch of an owner" are the number with which a coordinator claimed the topics. An
    `Epoch` is something else: a configuration and the first batch that uses it.
    """

    def __init__(self, files: Files) -> None:
        self.files = files  # of the whole checkpoint
        self._owner_epoch: int | None = None  # None until `own`

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
        """Return the identity of this state, and check that it belongs to the cluster and topic of `found`.

        The first call stores ("pins") `found`. Later calls return the pinned identity, whose
        `member_id_namespace` stays in force. `shards` and `state_partitions` are the numbers that the state
        must have. None accepts the pinned number, or at the first call that of `found`. Raises FolderError if
        a number, the cluster or the topic differs. `to_change` is the advice at the end of its message.
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
        # A state that was imported for another topic has no topic id until its first start.
        is_first_start = not pinned.requests_topic_id
        if is_first_start:
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
        if is_first_start:
            self._write(IDENTITY, pinned)
        return pinned

    def create(self, identity: Identity, record: OwnerRecord) -> None:
        """Write the files of an imported state. None of them may exist."""
        self._write(IDENTITY, identity)
        self._write(_owner_file(0), record)

    def rewrite(self, record: OwnerRecord) -> None:
        """Replace the newest owner's record. The coordinator must not run."""
        self._write(_owner_file(self.newest_owner()), record)

    def identity(self) -> Identity:
        """Return the pinned identity. Raises FolderError if there is no state."""
        identity = self.pinned()
        if identity is None:
            raise FolderError(f"{self} has no state of a coordinator")
        return identity

    def pinned(self) -> Identity | None:
        """Return the pinned identity, or None if there is no state yet. Raises FolderError if its file is
        damaged.
        """
        return self._read(IDENTITY, Identity)

    def newest_owner(self) -> int:
        """Return the highest epoch of an owner that wrote here, or 0 if there was no owner yet."""
        return max(self._owner_epochs(), default=0)

    def own(self, owner_epoch: int) -> None:
        """Write as the owner with this epoch from now on. Raises FolderError if a later owner wrote here."""
        self.check_owner(owner_epoch)
        owner_epochs, record = self._owner_epochs(), self.record()
        self._owner_epoch = owner_epoch
        self._write(_owner_file(owner_epoch), record)
        # Of the earlier owners, only the newest keeps its file.
        for earlier in [epoch for epoch in owner_epochs if epoch < owner_epoch][:-1]:
            self.files.remove(_owner_file(earlier))

    def check_owner(self, owner_epoch: int) -> None:
        """Raise FolderError if a later owner than this one wrote here."""
        if (newest := self.newest_owner()) > owner_epoch:
            raise FolderError(
                f"{self} has the record of a later owner, epoch {newest}; this one is {owner_epoch}"
            )

    def record(self) -> OwnerRecord:
        """Return this owner's record, or the newest owner's if `own` was not called."""
        owner_epoch = self.newest_owner() if self._owner_epoch is None else self._owner_epoch
        return self._read(_owner_file(owner_epoch), OwnerRecord) or OwnerRecord()

    def store_epoch(
        self,
        settings: Mapping[str, SettingValue],
        skip: list[str],
        code_version: str,
        *,
        after_ms: int,
        from_batch: int | None = None,
    ) -> list[Epoch]:
        """Store the configuration of this start if it is a new one, and return all configurations.

        The new configuration is in force after `after_ms`, the time of the latest event (0 if there is none),
        in batches from `from_batch` on, by default those that are not planned yet. `skip` are the ids of
        records that make the first uncommitted batch fail. This batch and all later ones skip them.
        """
        record = self.record()
        epochs = _with_skipped(record.epochs, skip, self.last_batch("commits") + 1)
        if not epochs:
            epochs = [Epoch(0, settings, skip, code_version)]  # it covers every batch
        elif (latest := epochs[-1]).settings != settings or latest.code_version != code_version:
            from_batch = self.last_batch("offsets") + 1 if from_batch is None else from_batch
            # A record appended in an outage is applied at the outage's end, under the old configuration.
            ends_ms = [known.outage.until_ms for known in record.outages if known.from_batch < from_batch]
            after_ms = max(after_ms, latest.after_ms, *ends_ms)
            # An earlier configuration stays if it covers a batch before `from_batch` or a time before
            # `after_ms`. The others have never been used.
            epochs = [e for e in epochs if e.from_batch < from_batch or e.after_ms < after_ms]
            epochs.append(Epoch(from_batch, settings, latest.skip, code_version, after_ms))
        if epochs != record.epochs:
            self._save(replace(record, epochs=epochs))
        return epochs

    def store_outage(self, after_ms: int, until_ms: int, from_batch: int | None = None) -> list[KnownOutage]:
        """Store the outage from `after_ms` to `until_ms`, which is now, and return all outages.

        `after_ms` is the latest time up to which a coordinator has acted. The new outage applies to batches
        from `from_batch` on, by default those that are not planned yet. It replaces each stored outage that
        ends after `after_ms` and that no batch before `from_batch` uses.
        """
        record = self.record()
        from_batch = self.last_batch("offsets") + 1 if from_batch is None else from_batch
        outages = [
            known
            for known in record.outages
            if known.from_batch < from_batch or known.outage.until_ms <= after_ms
        ]
        # A record appended in an outage is applied at that outage's end, so the new outage begins no earlier.
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
            return self._check_plan(committed, topic)
        ends = self.planned_ends(last, topic)
        repeated = sum(max(0, end - ends.get(partition, 0)) for partition, end in committed.ends.items())
        raise FolderError(
            f"the checkpoint {self.spark_uri} has lost batches: batch {committed.batch} was committed, and "
            f"the last one in {self.spark_uri}/offsets is {last if last >= 0 else 'none'}. {repeated} "
            f"records of {topic} that were handled would be handled a second time. Put the lost files "
            "back, or use the last copy of the whole folder"
        )

    def _check_plan(self, committed: CommittedBatch, topic: str) -> None:
        """Raise FolderError if the plan of this batch has other end offsets than those that it has read."""
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

    def store_committed(self, batch: int, topic: str, ends: Mapping[int, int] | None = None) -> None:
        """Store a committed batch and its end offsets (exclusive), by partition. Raises FolderNotWritable.

        If `ends` is None, they are the end offsets of the batch's plan.
        """
        ends = self.planned_ends(batch, topic) if ends is None else dict(ends)
        self._save(replace(self.record(), committed=CommittedBatch(batch, ends)))

    def planned_ends(self, batch: int, topic: str) -> dict[int, int]:
        """Return the end offsets (exclusive) of a batch by partition, or {} if it is not planned."""
        return planned_ends(self.files, batch).get(topic, {})

    def last_batch(self, log: str) -> int:
        """Return the last batch in Spark's `offsets` (planned) or `commits` (committed) log, or -1."""
        return last_batch(self.files, log)

    def _owner_epochs(self) -> list[int]:
        """Return the epochs of the owners whose files are here, the lowest first."""
        names = (Path(name) for name in self.files.names(OWNERS))
        return sorted(int(name.stem) for name in names if name.suffix == ".json" and name.stem.isdigit())

    def _save(self, record: OwnerRecord) -> None:
        assert self._owner_epoch is not None, "nothing is written without the ownership"
        self._write(_owner_file(self._owner_epoch), record)

    def _read(self, name: str, of: type[T]) -> T | None:
        """Read a JSON file with a checksum, or return None if it does not exist. Raises FolderError."""
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
    """Return `content` as a JSON object whose last field is the CRC-32 of the object without that field."""
    # JSON with a flipped bit may still be valid, so it needs a checksum, inserted before the closing brace.
    encoded = msgspec.json.encode(content)
    return msgspec.json.format(b'%b,"crc32":%d}' % (encoded[:-1], crc32(encoded)))


def _check_checksum(content: bytes) -> None:
    """Raise ValueError if the content, as `_encoded` returns it, has no checksum or another one."""
    # The checksum is of the JSON without the indentation that `_encoded` adds.
    match = _WITH_CHECKSUM.fullmatch(msgspec.json.format(content, indent=-1))
    if match is None:
        raise ValueError("it has no checksum")
    if crc32(match["others"] + b"}") != int(match["crc32"]):
        raise ValueError("it does not match its checksum")


def _owner_file(owner_epoch: int) -> str:
    return f"{OWNERS}/{owner_epoch}.json"


def _with_skipped(epochs: list[Epoch], skip: list[str], from_batch: int) -> list[Epoch]:
    """Return `epochs`, changed so that batches from `from_batch` on also skip the records `skip`."""
    new_skips = [record_id for record_id in skip if epochs and record_id not in epochs[-1].skip]
    if not new_skips:
        return epochs
    earlier = [e for e in epochs if e.from_batch < from_batch]
    later = [e for e in epochs if e.from_batch >= from_batch]
    if earlier and (not later or later[0].from_batch > from_batch):
        # The last earlier epoch also covers `from_batch`, so it is split there.
        later.insert(0, replace(earlier[-1], from_batch=from_batch))
    return earlier + [replace(e, skip=[*e.skip, *new_skips]) for e in later]


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
    """Raise FolderError if a replica of code with other rules answered requests that no planned batch reads.

    A replica is a process that answers requests before the query does. `is_ahead` is True if there are such
    requests: the last replica acted on later times than the planned batches.
    """
    epochs = checkpoint.record().epochs if is_ahead else []
    if not epochs or epochs[-1].code_version in SAME_RULES:
        return
    answered_by = epochs[-1].code_version
    raise FolderError(
        f"version {answered_by} was ended before its query had handled all requests that its replica had "
        f"answered. This is version {version}, which decides requests by other rules, so it could answer "
        f"them a second time and differently. Start version {answered_by} on this folder once more, with "
        "--no-replica --no-gateway, and stop it in order when it is ready (docs/recovery.md, 'Upgrade')"
    )
