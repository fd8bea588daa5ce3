"""The coordinator's folder: Spark's checkpoint, and beside it the files that must survive with it.

Its content:

    <folder>/spark/         Spark's own checkpoint of the query
    <folder>/identity.json  the cluster, topic and namespace that this state belongs to
    <folder>/epochs.json    the configurations so far, each with its first batch
    <folder>/outages.json   the times without a coordinator, each with the first batch that knows it
    <folder>/committed.json the last batch known to be committed, and the offsets it had read to
    <folder>/lock           locked by the one coordinator that may work here and by its JVM, which it names
    <folder>/owner          locked by that coordinator's process alone
"""

import fcntl
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from state.inputs import Outage

LINGERING_JVM_TIMEOUT_S = 60.0
# The number of known outages. A group without a call during so many of them does not know earlier ones.
OUTAGES_KEPT = 100

T = TypeVar("T")

_MOVE = (
    "Move it into a new folder with 'group-coordinator state export' and 'group-coordinator state import' "
    "(docs/operations.md, 'Moving the state')"
)


class FolderError(RuntimeError):
    """The folder cannot be used: locked by another coordinator, made for another topic, or damaged."""


class FolderNotWritable(FolderError):
    """A file of the folder cannot be written, most often because the disk is full."""


class Owner(Struct, frozen=True):
    """The coordinator that holds the folder's lock, as named in the lock file."""

    pid: int
    host: str
    since_ms: int

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, tz=UTC)
        return f"process id {self.pid} on host {self.host} since {since:%Y-%m-%d %H:%M:%S} UTC"


class Committed(Struct, frozen=True):
    """A committed batch. `ends`: the offset after the last record it read, by partition."""

    batch: int
    ends: dict[int, int]


class Moved(Struct, frozen=True):
    """How a state came into its folder: from the folder of `from_owner_id`, exported at `exported_at_ms`.

    `owner_id` is the new folder's own (`streaming.service.owner`).
    """

    owner_id: str
    from_owner_id: str
    exported_at_ms: int


class Identity(Struct, frozen=True):
    """The cluster and topic of the state. `member_id_namespace` is secret: it determines member ids.

    `requests_topic_id` is "" if the first start on this state has to pin it. `shards` is the number of shards
    of a partition, None if a version without shards wrote the state. `moved` is set if it was imported.
    """

    cluster_id: str
    requests_topic: str
    requests_topic_id: str
    request_partitions: int
    member_id_namespace: str
    shards: int | None = None
    moved: Moved | None = None


class Epoch(Struct, frozen=True):
    """A configuration and its first batch. A batch that runs again uses the configuration of its first run.

    `settings` are by Kafka's dotted names. `skip` are ids of records that are dead-lettered unread.
    """

    from_batch: int
    settings: dict[str, int]
    skip: list[str]
    code_version: str


class KnownOutage(Struct, frozen=True):
    """An outage, and the first batch that knows it."""

    from_batch: int
    outage: Outage


class Folder:
    """The folder of one coordinator. Call `lock` before any other method."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spark = path / "spark"
        self._locks: list[int] = []

    def lock(self) -> int:
        """Lock the folder for this process. Raises FolderError naming the present holder.

        The lock belongs to the returned file descriptor. Pass it on to the JVM: a JVM that outlives a killed
        coordinator for a moment may still finish a batch, and then keeps the next coordinator waiting. No
        effect if this object holds the lock already.
        """
        if self._locks:
            return self._locks[0]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._locks = [self._open("lock"), self._open("owner")]
        except OSError as error:
            raise FolderError(f"{self.path} cannot be used: {error}") from error
        lock, owner = self._locks
        try:
            self._acquire(lock, owner)
            _name_owner(lock, self.path)
        except BaseException:
            self.unlock()
            raise
        fcntl.flock(owner, fcntl.LOCK_EX)  # processes that test this lock release it at once
        return lock

    def _open(self, name: str) -> int:
        return os.open(self.path / name, os.O_RDWR | os.O_CREAT, 0o644)

    def _acquire(self, lock: int, owner: int) -> None:
        give_up = time.monotonic() + LINGERING_JVM_TIMEOUT_S
        while not _try_lock(lock):
            holder = _read_owner(lock)
            if not _try_lock(owner):
                raise FolderError(f"{self.path} is in use by the coordinator with {holder}")
            fcntl.flock(owner, fcntl.LOCK_UN)
            if time.monotonic() > give_up:
                raise FolderError(
                    f"{self.path} is still in use by the Spark JVM of the coordinator that had {holder}: "
                    "end that JVM"
                )
            # The coordinator has ended and its JVM is ending. flock cannot wait with a time limit.
            time.sleep(0.05)

    def unlock(self) -> None:
        """Release the lock."""
        for fd in self._locks:
            os.close(fd)
        self._locks = []

    def pin(self, found: Identity, shards: int | None = None) -> Identity:
        """Return the identity of this folder. The first call pins `found`, later calls return the pinned one.

        `shards` is the number of shards that the state must have. None: that of the pinned identity, or of
        `found` if none is pinned. Raises FolderError if the requests topic is not the one that the state
        belongs to, or if the state has another number of shards. The namespace is not compared, because the
        pinned one stays in force.
        """
        path = self.path / "identity.json"
        pinned = _read(path, Identity)
        if pinned is None:
            found = replace(found, shards=shards or found.shards)
            _write(path, found)
            return found
        if pinned.shards is None:
            raise FolderError(f"the state in {self.path} was written by a version without shards. {_MOVE}")
        if shards not in (None, pinned.shards):
            raise FolderError(
                f"the state in {self.path} has {pinned.shards} shards of a partition, not {shards}. {_MOVE}"
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
                f"the state in {self.path} belongs to another requests topic: {'; '.join(changed)}. "
                "Group offsets and partitions have no meaning there. Use another folder, or restore that "
                f"topic. For another number of partitions: {_MOVE}"
            )
        if is_new_topic:
            _write(path, pinned)
        return pinned

    def create(
        self, identity: Identity, epochs: list[Epoch], outages: list[KnownOutage], committed: Committed
    ) -> None:
        """Write the files of an imported state. The folder has no others of these names."""
        _write(self.path / "identity.json", identity)
        _write(self.path / "epochs.json", epochs)
        _write(self.path / "outages.json", outages)
        _write(self.path / "committed.json", committed)

    def identity(self) -> Identity:
        """Return the pinned identity. Raises FolderError if this folder has no state."""
        identity = _read(self.path / "identity.json", Identity)
        if identity is None:
            raise FolderError(f"{self.path} has no state of a coordinator")
        return identity

    def known_epochs(self) -> list[Epoch]:
        """Return the configurations so far."""
        return _read(self.path / "epochs.json", list[Epoch]) or []

    def known_outages(self) -> list[KnownOutage]:
        """Return the outages so far."""
        return _read(self.path / "outages.json", list[KnownOutage]) or []

    def epochs(self, settings: dict[str, int], skip: list[str], code_version: str) -> list[Epoch]:
        """Return all configurations with that of this start, which begins at the first unplanned batch.

        Records to skip begin at the first uncommitted batch, because they are the ones that stop it. That
        batch keeps its settings.
        """
        path = self.path / "epochs.json"
        known = self.known_epochs()
        epochs = _with_skipped(known, skip, self.last_batch("commits") + 1)
        latest = epochs[-1] if epochs else None
        if latest is None or (latest.settings, latest.code_version) != (settings, code_version):
            from_batch = self.last_batch("offsets") + 1 if latest else 0  # the first covers every batch
            new = Epoch(from_batch, settings, latest.skip if latest else skip, code_version)
            epochs = [e for e in epochs if e.from_batch < from_batch] + [new]
        if epochs != known:
            _write(path, epochs)
        return epochs

    def outages(self, after_ms: int, until_ms: int) -> list[KnownOutage]:
        """Return the outages, with the one that ends now. Batches that are not planned yet know the latter.

        `after_ms` is the latest append time that a planned batch has read, `until_ms` the end of the outage.
        An earlier outage that no batch knows is merged into this one.
        """
        path = self.path / "outages.json"
        known = self.known_outages()
        from_batch = self.last_batch("offsets") + 1
        outages = [outage for outage in known if outage.from_batch < from_batch]
        if after_ms < until_ms:
            outages.append(KnownOutage(from_batch, Outage(after_ms, until_ms)))
        _write(path, outages[-OUTAGES_KEPT:])
        return outages[-OUTAGES_KEPT:]

    def check_committed(self, topic: str) -> None:
        """Raise FolderError if Spark's checkpoint has lost a committed batch.

        Spark would silently read that batch's requests again.
        """
        path = self.path / "committed.json"
        committed = _read(path, Committed)
        last = self.last_batch("offsets")
        if committed is None or last >= committed.batch:
            return
        ends = self.planned_ends(last, topic)
        again = sum(max(0, end - ends.get(partition, 0)) for partition, end in committed.ends.items())
        raise FolderError(
            f"the checkpoint {self.spark} has lost batches: batch {committed.batch} was committed, and the "
            f"last one in {self.spark / 'offsets'} is {last if last >= 0 else 'none'}. {again} records of "
            f"{topic} that were handled would be handled and answered a second time. Put the lost files "
            f"back, or use the last copy of the whole folder; or remove {path} to accept it"
        )

    def pin_committed(self, batch: int, topic: str) -> None:
        """Store that a batch was committed. Raises FolderNotWritable."""
        ends = self.planned_ends(batch, topic)
        _write(self.path / "committed.json", Committed(batch, ends))

    def planned_ends(self, batch: int, topic: str) -> dict[int, int]:
        """The offsets, by partition, up to which (exclusive) a batch reads. Empty if it is not planned."""
        path = self.spark / "offsets" / str(batch)
        if not path.exists():
            return {}
        # A version, Spark's own metadata, then a line for each source. This query has one source.
        try:
            ends = msgspec.json.decode(path.read_bytes().splitlines()[2], type=dict[str, dict[int, int]])
        except (IndexError, msgspec.DecodeError) as error:
            raise FolderError(f"{path} is damaged: {error}") from error
        return ends.get(topic, {})

    def last_batch(self, log: str) -> int:
        """The last batch in Spark's `offsets` (planned) or `commits` (committed) log, -1 if there is none."""
        folder = self.spark / log
        names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
        return max((int(name) for name in names if name.isdigit()), default=-1)


def new_namespace() -> str:
    """Return a new secret for `Identity.member_id_namespace`."""
    return str(uuid4())


def _with_skipped(epochs: list[Epoch], skip: list[str], from_batch: int) -> list[Epoch]:
    """Return the configurations with these records also skipped from this batch on."""
    new = [record for record in skip if epochs and record not in epochs[-1].skip]
    if not new:
        return epochs
    before = [e for e in epochs if e.from_batch < from_batch]
    after = [e for e in epochs if e.from_batch >= from_batch]
    if before and (not after or after[0].from_batch > from_batch):
        after.insert(0, replace(before[-1], from_batch=from_batch))
    return before + [replace(e, skip=[*e.skip, *new]) for e in after]


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name_owner(lock: int, folder: Path) -> None:
    """Write this process into the lock file."""
    content = msgspec.json.encode(Owner(os.getpid(), socket.gethostname(), int(time.time() * 1000)))
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, content, 0)
    except OSError as error:
        raise FolderNotWritable(f"{folder} cannot be written: {error.strerror}") from error


def _read_owner(lock: int) -> Owner | str:
    """Read the holder of the lock. Earlier versions wrote only the process id. A starting one has written
    nothing.
    """
    content = os.pread(lock, 1024, 0)
    try:
        return msgspec.json.decode(content, type=Owner)
    except msgspec.DecodeError:
        return f"process id {content.decode(errors='replace').strip() or '?'}"


def _read(path: Path, of: type[T]) -> T | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(content, type=of)
    except msgspec.DecodeError as error:
        raise FolderError(f"{path} is damaged: {error}") from error


def _write(path: Path, content: object) -> None:
    """Replace a file atomically, so a crash leaves the old or the new one. Raises FolderNotWritable."""
    temporary = path.with_suffix(".new")
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise FolderNotWritable(f"{path} cannot be written: {error.strerror}") from error
