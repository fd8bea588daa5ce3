"""The stories: what happens to groups, with which clients."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass

from tests.observed.applications import CONNECT, ConnectPlay, StreamsPlay
from tests.observed.described import SharePlay, StreamsEpochsPlay
from tests.observed.member import (
    FRANZ_GO,
    JAVA,
    JAVA_COOPERATIVE,
    JAVA_EPOCHS,
    KAFKA_PYTHON,
    LIBRDKAFKA,
    LIBRDKAFKA_EPOCHS,
    SHARE,
    STREAMS,
    STREAMS_EPOCHS,
    Library,
)
from tests.observed.play import Play
from tests.observed.stage import Stage


@dataclass(frozen=True)
class Story:
    """A story and its first client's library. `clients` names all, if there are several. `of_epochs`: some of
    them use the consumer protocol.
    """

    name: str
    library: Library
    script: Callable[[Play], None]
    clients: str | None = None
    of_epochs: bool = False
    kind: type[Play] = Play

    def why_not(self, stage: Stage) -> str:
        """Why the story cannot be played there, "" if it can."""
        if self.library.protocol not in stage.protocols or (
            self.of_epochs and "consumer" not in stage.protocols
        ):
            return "that coordinator has no such groups"
        if self.library is LIBRDKAFKA_EPOCHS and "3.9" in stage.name:
            return "librdkafka asks for a later version of that protocol"
        if self.library is FRANZ_GO and shutil.which("go") is None:
            return "there is no go"
        return ""

    def played_on(self, stage: Stage) -> Play:
        """A group for it."""
        return self.kind(stage, self.name, self.library, clients=self.clients)


def _eager(play: Play) -> None:
    play.start("a")
    play.start("b")
    play.commit("b")
    play.kill("b")
    play.grow()
    play.leave("a")
    play.delete()


def _cooperative(play: Play) -> None:
    play.start("a")
    play.start("b")
    play.start("c")
    play.commit("a")
    play.leave("a")
    play.kill("c")


def _subscribing(play: Play) -> None:
    play.create_topic(f"{play.topic}-2")
    play.start("a")
    play.start("b")
    play.commit("a")
    play.subscribe("a", [play.topic, f"{play.topic}-2"])
    play.leave("a")


def _stopped(play: Play) -> None:
    play.start("a")
    play.start("b")
    play.commit("b")
    play.pause("b")
    play.resume("b")
    play.leave("a")


def _static(play: Play) -> None:
    play.start("a", instance_id="one")
    play.start("b", instance_id="two")
    play.restart("b")
    play.kill("b")


def _epochs(play: Play) -> None:
    play.start("a")
    play.start("b")
    play.commit("b")
    play.kill("b")
    play.grow()
    play.start("c")
    play.leave("a")
    play.leave("c")
    play.delete()


def _mixed(play: Play) -> None:
    play.start("a")
    play.start("b", LIBRDKAFKA)
    play.start("c", KAFKA_PYTHON)
    play.commit("b")
    play.leave("b")
    play.kill("a")


def _converted(play: Play) -> None:
    play.start("a")
    play.start("b", JAVA_EPOCHS)
    play.leave("a")
    play.leave("b")


def _transactions(play: Play) -> None:
    play.commit_in_transactions()
    play.start("a")
    play.leave("a")


def _streams(play: Play) -> None:
    assert isinstance(play, StreamsPlay)
    play.start("a")
    play.start("b")
    play.produce()
    play.kill("b")
    play.start("c")
    play.probe()
    play.leave("a")


def _tasks(play: Play) -> None:
    play.start("a")
    play.start("b")
    play.kill("b")
    play.start("c")
    play.leave("a")


def _shared(play: Play) -> None:
    play.start("a")
    play.start("b")
    play.grow()
    play.kill("b")


def _connect(play: Play) -> None:
    assert isinstance(play, ConnectPlay)
    play.start("a")
    play.sink("sink", 3)
    play.start("b")
    play.kill("b")
    play.start("c")
    play.leave("a")


_ALL = (
    Story("java-eager", JAVA, _eager),
    Story("java-cooperative", JAVA_COOPERATIVE, _cooperative),
    Story("java-subscribing", JAVA, _subscribing),
    Story("java-static", JAVA, _static),
    Story("librdkafka-stopped", LIBRDKAFKA, _stopped),
    Story("librdkafka-static", LIBRDKAFKA, _static),
    Story("kafka-python-eager", KAFKA_PYTHON, _eager),
    Story("franz-go-cooperative", FRANZ_GO, _cooperative),
    Story("mixed", JAVA, _mixed, "Java, librdkafka, kafka-python"),
    Story("java-epochs", JAVA_EPOCHS, _epochs),
    Story("java-epochs-subscribing", JAVA_EPOCHS, _subscribing),
    Story("librdkafka-epochs", LIBRDKAFKA_EPOCHS, _stopped),
    Story("java-converted", JAVA, _converted, of_epochs=True),
    Story("transactions", LIBRDKAFKA, _transactions),
    Story("streams", STREAMS, _streams, kind=StreamsPlay),
    Story("streams-protocol", STREAMS_EPOCHS, _tasks, kind=StreamsEpochsPlay),
    Story("share", SHARE, _shared, kind=SharePlay),
    Story("connect", CONNECT, _connect, kind=ConnectPlay),
)
STORIES = {story.name: story for story in _ALL}
