"""The persistent state of notify, in one file: the positions in the topic, and the troubles that were
sent.

The file is replaced after the receiver has accepted a message. After a crash between the two, the message is
sent again, so none is lost.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from kafka_why.local_files import FolderError, LocalFiles
from kafka_why.notify.messages import Message, Status
from kafka_why.notify.outbox import Position, Taken

FILE = "notify.json"
VERSION = 1


class _Content(Struct, kw_only=True):
    """The content of the file. `told` are the ids of the accepted messages whose rebalances end after the
    positions.
    """

    version: int
    topic: str
    positions: dict[int, Position] = {}
    told: list[str] = []
    open: dict[str, Message] = {}


_decoder = msgspec.json.Decoder(_Content)


class Kept:
    """The state file in a folder, for one events topic. Only the sending thread changes it. The constructor
    reads it, and raises FolderError if it cannot be read or belongs to another topic.
    """

    def __init__(self, folder: Path, topic: str) -> None:
        self._files = LocalFiles(folder)
        self._content = _read(self._files, folder / FILE, topic)

    @property
    def positions(self) -> dict[int, Position]:
        """The positions by partition, {} before the first start."""
        return dict(self._content.positions)

    @property
    def sent(self) -> frozenset[str]:
        """The ids of messages that were sent although their rebalances end after the positions."""
        return frozenset(self._content.told)

    @property
    def open(self) -> list[Message]:
        """The troubles whose beginning was sent, but not their end."""
        return list(self._content.open.values())

    def deliver(self, messages: Sequence[Message], taken: Taken) -> None:
        """Record that the receiver has accepted these messages or will never accept them. `save` writes it to
        the file.
        """
        content = self._content
        for message in messages:
            if message.status is Status.BEGAN:
                content.open[message.id] = message
            elif message.status is Status.ENDED:
                content.open.pop(message.id, None)
        ids = [message.id for message in taken.beyond if message.status is Status.HAPPENED]
        if taken.positions is None:
            content.told += ids
        else:
            content.positions, content.told = dict(taken.positions), ids

    def save(self) -> None:
        """Write the file, or replace it. Raises FolderNotWritable."""
        self._files.write(FILE, msgspec.json.encode(self._content))


def _read(files: LocalFiles, path: Path, topic: str) -> _Content:
    try:
        content = _decoder.decode(files.read(FILE))
    except FileNotFoundError:
        return _Content(version=VERSION, topic=topic)
    except msgspec.DecodeError as error:
        raise FolderError(
            f"{path} is damaged: {error}. If it is removed, notify begins at the end of the topic"
        ) from None
    if content.version != VERSION:
        raise FolderError(f"{path} has version {content.version}, and this code reads version {VERSION}")
    if content.topic != topic:
        raise FolderError(f"{path} is for topic {content.topic}, not for {topic}: use another folder")
    return content
