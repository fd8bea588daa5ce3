"""The coordinator's folder: Spark's checkpoint, and beside it what must not change or be forgotten.

In it stand:

    <folder>/spark/         Spark's own checkpoint of the query
    <folder>/identity.json  the cluster, topic and namespace this state belongs to
    <folder>/epochs.json    the configurations it has run under, each with the batch it started at
    <folder>/outages.json   when no coordinator ran, each with the batch from which on it is known
    <folder>/committed.json the last batch that is known to be committed, and what it had read
    <folder>/lock           held by the one coordinator that may work here, and by its JVM; says whose it is
    <folder>/owner          held by that coordinator's process alone
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
# A group that nothing happened to through so many of them knows no earlier ones.
OUTAGES_KEPT = 100

T = TypeVar("T")


class FolderError(RuntimeError):
    """The folder cannot be used: locked by another coordinator, of another topic, or damaged."""


class FolderNotWritable(FolderError):
    """A file of the folder cannot be written; most often the disk is full."""


class Owner(Struct, frozen=True):
    """The coordinator that has the folder's lock, as the lock file names it."""

    pid: int
    host: str
    since_ms: int

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, tz=UTC)
        return f"process id {self.pid} on host {self.host} since {since:%Y-%m-%d %H:%M:%S} UTC"


class Committed(Struct, frozen=True):
    """A batch that was committed. `ends`: the offset after the last record it read, by partition."""

    batch: int
    ends: dict[int, int]


class Identity(Struct, frozen=True):
    """What the state belongs to. `member_id_namespace` is secret: who has it can guess member ids."""

    cluster_id: str
    requests_topic: str
    requests_topic_id: str
    request_partitions: int
    member_id_namespace: str


class Epoch(Struct, frozen=True):
    """A configuration, and the batch it starts at; a batch that runs again finds the one it had.

    `settings` are by Kafka's dotted names; `skip` are ids of records that are dead-lettered unread.
    """

    from_batch: int
    settings: dict[str, int]
    skip: list[str]
    code_version: str


class KnownOutage(Struct, frozen=True):
    """An outage, and the batch from which on it is known."""

    from_batch: int
    outage: Outage


class Folder:
    """The folder of one coordinator; `lock` before anything else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spark = path / "spark"
        self._locks: list[int] = []

    def lock(self) -> int:
        """Take the folder for this process, or raise FolderError naming who has it.

        The lock belongs to the returned file descriptor. Hand it on to the JVM: then a JVM that outlives a
        killed coordinator for a moment, and may still finish a batch, keeps the next one waiting. Where this
        object has the lock already, nothing happens.
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
        fcntl.flock(owner, fcntl.LOCK_EX)  # whoever looks whether it is held lets go at once
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
            # Its coordinator is gone, its JVM is about to be. flock has no wait with a bound.
            time.sleep(0.05)

    def unlock(self) -> None:
        """Give the folder back."""
        for fd in self._locks:
            os.close(fd)
        self._locks = []

    def pin(self, found: Identity) -> Identity:
        """The identity of this folder: what was pinned at its first use, or `found`, which then is.

        Raises FolderError where the topic is not the one the state belongs to any more. The namespace is
        never compared: the pinned one holds.
        """
        path = self.path / "identity.json"
        pinned = _read(path, Identity)
        if pinned is None:
            _write(path, found)
            return found
        changed = [
            f"{name} was {was!r} and is {now!r}"
            for name in ("cluster_id", "requests_topic", "requests_topic_id", "request_partitions")
            if (was := getattr(pinned, name)) != (now := getattr(found, name))
        ]
        if changed:
            raise FolderError(
                f"the state in {self.path} belongs to another requests topic: {'; '.join(changed)}. "
                "Offsets and partitions of groups mean nothing there; use another folder, or bring that "
                "topic back"
            )
        return pinned

    def epochs(self, settings: dict[str, int], skip: list[str], code_version: str) -> list[Epoch]:
        """All configurations up to this start's, which begins at the first batch that is not planned yet.

        Records to skip begin at the batch that has not been committed, for it is the one they stop; its
        settings stay what they were.
        """
        path = self.path / "epochs.json"
        known = _read(path, list[Epoch]) or []
        epochs = _with_skipped(known, skip, self.last_batch("commits") + 1)
        latest = epochs[-1] if epochs else None
        if latest is None or (latest.settings, latest.code_version) != (settings, code_version):
            from_batch = self.last_batch("offsets") + 1 if latest else 0  # every batch has one
            new = Epoch(from_batch, settings, latest.skip if latest else skip, code_version)
            epochs = [e for e in epochs if e.from_batch < from_batch] + [new]
        if epochs != known:
            _write(path, epochs)
        return epochs

    def outages(self, after_ms: int, until_ms: int) -> list[KnownOutage]:
        """The outages up to the one that ends now, which batches know of that are not planned yet.

        `after_ms` is the latest append time that a planned batch has read. An outage that no batch came to
        know of is part of the one that ends now.
        """
        path = self.path / "outages.json"
        known = _read(path, list[KnownOutage]) or []
        from_batch = self.last_batch("offsets") + 1
        outages = [outage for outage in known if outage.from_batch < from_batch]
        if after_ms < until_ms:
            outages.append(KnownOutage(from_batch, Outage(after_ms, until_ms)))
        _write(path, outages[-OUTAGES_KEPT:])
        return outages[-OUTAGES_KEPT:]

    def check_committed(self, topic: str) -> None:
        """Raise FolderError where Spark's checkpoint has lost a batch that was committed.

        Spark would read that batch's requests again without a word.
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
        """Remember that a batch was committed. Raises FolderNotWritable."""
        ends = self.planned_ends(batch, topic)
        _write(self.path / "committed.json", Committed(batch, ends))

    def planned_ends(self, batch: int, topic: str) -> dict[int, int]:
        """Up to which offset of each partition (exclusive) a batch reads; nothing where it is not planned."""
        path = self.spark / "offsets" / str(batch)
        if not path.exists():
            return {}
        # A version, Spark's own metadata, then a line for each source: here one.
        try:
            ends = msgspec.json.decode(path.read_bytes().splitlines()[2], type=dict[str, dict[int, int]])
        except (IndexError, msgspec.DecodeError) as error:
            raise FolderError(f"{path} is damaged: {error}") from error
        return ends.get(topic, {})

    def last_batch(self, log: str) -> int:
        """The last batch in Spark's `offsets` (planned) or `commits` (done) log, -1 where there is none."""
        folder = self.spark / log
        names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
        return max((int(name) for name in names if name.isdigit()), default=-1)


def new_namespace() -> str:
    """A fresh secret for `Identity.member_id_namespace`."""
    return str(uuid4())


def _with_skipped(epochs: list[Epoch], skip: list[str], from_batch: int) -> list[Epoch]:
    """The same configurations, but from this batch on these records are skipped too."""
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
    """Write into the lock file who has it."""
    content = msgspec.json.encode(Owner(os.getpid(), socket.gethostname(), int(time.time() * 1000)))
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, content, 0)
    except OSError as error:
        raise FolderNotWritable(f"{folder} cannot be written: {error.strerror}") from error


def _read_owner(lock: int) -> Owner | str:
    """Who has the lock. Earlier versions wrote the process id alone; one that starts has not written yet."""
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
    """Replace a file so that after a crash it is the old one or the new one. Raises FolderNotWritable."""
    temporary = path.with_suffix(".new")
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise FolderNotWritable(f"{path} cannot be written: {error.strerror}") from error
