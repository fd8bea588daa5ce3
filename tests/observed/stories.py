"""The stories: what happens to groups, with which clients."""

import shutil
from dataclasses import dataclass
from typing import Any

from tests.observed.applications import (
    CONNECT,
    ConnectPlay,
    SharePlay,
    StreamsEpochsPlay,
    StreamsPlay,
)
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
from tests.observed.truth import Truth


@dataclass(frozen=True)
class Story:
    """A story and its first client's library. `clients` names all, if there are several. `of_epochs`: some of
    them use the consumer protocol. `script` are methods of `kind` with their arguments.
    """

    name: str
    library: Library
    script: str
    clients: str | None = None
    of_epochs: bool = False
    kind: type[Play] = Play

    @property
    def names(self) -> str:
        """The clients' names."""
        return self.clients or self.library.name

    def why_not(self, stage: Stage) -> str:
        """Return why the story cannot be played there, or "" if it can."""
        if self.library.protocol not in stage.protocols or (
            self.of_epochs and "consumer" not in stage.protocols
        ):
            return "that coordinator has no such groups"
        if self.library is LIBRDKAFKA_EPOCHS and "3.9" in stage.name:
            return "librdkafka asks for a later version of that protocol"
        if self.library is FRANZ_GO and shutil.which("go") is None:
            return "there is no go"
        return ""

    def play(self, stage: Stage) -> Truth:
        """Play the script with a group on a stage."""
        with self.kind(stage, self.name, self.library, clients=self.clients) as play:
            for step in self.script.split(", "):
                method, *words = step.split()
                named: dict[str, Any] = dict(word.split("=") for word in words if "=" in word)
                if "library" in named:
                    named["library"] = _OTHERS[named["library"]]
                getattr(play, method)(*(word for word in words if "=" not in word), **named)
            play.finish()
        return play.truth


_OTHERS = {"librdkafka": LIBRDKAFKA, "kafka-python": KAFKA_PYTHON, "java-epochs": JAVA_EPOCHS}
"""Libraries of members that are not the story's own."""
_EAGER = "start a, start b, commit b, kill b, grow, leave a, delete"
_STOPPED = "start a, start b, commit b, pause b, resume b, leave a"
_STATIC = "start a instance_id=one, start b instance_id=two, restart b, kill b"
_SUBSCRIBING = "create_topic 2, start a, start b, commit a, subscribe_to_all a, leave a"
_ALL = (
    Story("java-eager", JAVA, _EAGER),
    Story("java-cooperative", JAVA_COOPERATIVE, "start a, start b, start c, commit a, leave a, kill c"),
    Story("java-subscribing", JAVA, _SUBSCRIBING),
    Story("java-static", JAVA, _STATIC),
    Story("librdkafka-stopped", LIBRDKAFKA, _STOPPED),
    Story("librdkafka-static", LIBRDKAFKA, _STATIC),
    Story("kafka-python-eager", KAFKA_PYTHON, _EAGER),
    Story("franz-go-cooperative", FRANZ_GO, "start a, start b, start c, commit a, leave a, kill c"),
    Story(
        "mixed",
        JAVA,
        "start a, start b library=librdkafka, start c library=kafka-python, commit b, leave b, kill a",
        clients="Java, librdkafka, kafka-python",
    ),
    Story(
        "java-epochs",
        JAVA_EPOCHS,
        "start a, start b, commit b, kill b, grow, start c, leave a, leave c, delete",
    ),
    Story("java-epochs-subscribing", JAVA_EPOCHS, _SUBSCRIBING),
    Story("librdkafka-epochs", LIBRDKAFKA_EPOCHS, _STOPPED),
    Story("java-converted", JAVA, "start a, start b library=java-epochs, leave a, leave b", of_epochs=True),
    Story("transactions", LIBRDKAFKA, "commit_in_transactions, start a, leave a"),
    Story("streams", STREAMS, "start a, start b, produce, kill b, start c, probe, leave a", kind=StreamsPlay),
    Story(
        "streams-protocol",
        STREAMS_EPOCHS,
        "start a, start b, kill b, start c, leave a",
        kind=StreamsEpochsPlay,
    ),
    Story("share", SHARE, "start a, start b, grow, kill b", kind=SharePlay),
    Story("connect", CONNECT, "start a, sink 3, start b, kill b, start c, leave a", kind=ConnectPlay),
)
STORIES = {story.name: story for story in _ALL}
