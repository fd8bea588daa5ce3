"""The applications: how an instance of each is started, what it reads, and how its output is judged."""

import subprocess
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from embedded.jars import cache_dir, jar_paths
from embedded.java import find_java
from tests.campaigns.verdict import Verdict
from tests.harness.java_tools import java_options
from tests.transactions.checker import Copy, copied_value, judge_copies, judge_counts, word_of

PARTITIONS = 6
"""Of each input and output topic."""
TRANSACTION_TIMEOUT_MS = 60_000
WORDS = 30

# The log goes to standard error, which the parent process writes to a file.
_LOG4J2 = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
logger.streams.name = org.apache.kafka.streams.KafkaStreams
logger.streams.level = info
"""


@dataclass(frozen=True)
class Seat:
    """Where an instance works. `folder` is its own. `records` is the largest number of a transaction."""

    servers: str
    name: str
    group: str
    input_topic: str
    output_topic: str
    folder: Path
    records: int


class Application(ABC):
    """A kind of application: one that copies records, unless it says otherwise."""

    name: str

    @property
    def topics(self) -> tuple[str, str]:
        """The input topic and the output topic, which have PARTITIONS partitions."""
        return f"{self.name}-input", f"{self.name}-output"

    @abstractmethod
    def command(self, seat: Seat) -> list[str]:
        """Return the command line of an instance."""

    def value(self, partition: int, number: int) -> bytes:
        """Return the value of an input record."""
        return copied_value(partition, number)

    def judge(self, inputs: Mapping[int, int], outputs: Iterable[Copy]) -> Iterator[Verdict]:
        """Yield what is wrong with the output. `inputs` is the number of input records by partition."""
        return judge_copies(inputs, outputs)

    def has_given_up(self, log: str) -> bool:
        """Return True if a process that runs does nothing any more, by its log."""
        return False


@dataclass(frozen=True)
class Loop(Application):
    """One of `tests.transactions.loops`."""

    name: str
    module: str

    def command(self, seat: Seat) -> list[str]:
        module = f"tests.transactions.loops.{self.module}"
        return [sys.executable, "-W", "ignore", "-m", module, *self.options(seat)]

    def options(self, seat: Seat) -> list[str]:
        """Return the arguments of the loop."""
        options = {
            "servers": seat.servers,
            "group": seat.group,
            "input-topic": seat.input_topic,
            "output-topic": seat.output_topic,
            "transactional-id": seat.name,
            "records": str(seat.records),
            "timeout-ms": str(TRANSACTION_TIMEOUT_MS),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return arguments


@dataclass(frozen=True)
class GoLoop(Loop):
    """The loop with franz-go, which `go` builds at the first call."""

    def command(self, seat: Seat) -> list[str]:
        return [str(built(Path(__file__).parent / "loops" / self.module)), *self.options(seat)]


@dataclass(frozen=True)
class MessageCopier(Application):
    """Kafka's own `TransactionalMessageCopier`, which aborts one of three transactions by itself. It ends
    when it has read what stood in its partitions when they came to it.
    """

    name: str = "java-copier"

    def command(self, seat: Seat) -> list[str]:
        options = {
            "broker-list": seat.servers,
            "consumer-group": seat.group,
            "input-topic": seat.input_topic,
            "input-partition": "-1",
            "output-topic": seat.output_topic,
            "transactional-id": seat.name,
            "transaction-size": str(seat.records),
            "transaction-timeout": str(TRANSACTION_TIMEOUT_MS),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        arguments += ["--group-mode", "--use-group-metadata", "--enable-random-aborts"]
        return _java(
            seat, jar_paths("tools"), "org.apache.kafka.tools.TransactionalMessageCopier", *arguments
        )


@dataclass(frozen=True)
class WordCount(Application):
    """Kafka's own example of a Streams application, with `exactly_once_v2`. Its topics' names are fixed."""

    name: str = "streams"

    @property
    def topics(self) -> tuple[str, str]:
        return "streams-plaintext-input", "streams-wordcount-output"

    def command(self, seat: Seat) -> list[str]:
        settings = {
            "application.id": seat.group,
            "client.id": seat.name,
            "bootstrap.servers": seat.servers,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": "1000",
            "producer.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
            "main.consumer.session.timeout.ms": "10000",
            "main.consumer.heartbeat.interval.ms": "1000",
            # Every record that is counted gives a record of the output.
            "statestore.cache.max.bytes": "0",
            "state.dir": str(seat.folder / "state"),
        }
        file = seat.folder / "streams.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        main = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
        return _java(seat, jar_paths("streams"), main, str(file))

    def value(self, partition: int, number: int) -> bytes:
        return word_of(partition, number, PARTITIONS, WORDS).encode()

    def judge(self, inputs: Mapping[int, int], outputs: Iterable[Copy]) -> Iterator[Verdict]:
        counts = Counter(
            word_of(partition, number, PARTITIONS, WORDS)
            for partition, numbers in inputs.items()
            for number in range(numbers)
        )
        return judge_counts(counts, outputs)

    def has_given_up(self, log: str) -> bool:
        return " to ERROR" in log


def built(folder: Path) -> Path:
    """Return the program of a Go module, built if its sources are newer. The modules come from Go's proxy."""
    program = cache_dir() / "loops" / folder.name
    sources = [folder / name for name in ("main.go", "go.mod", "go.sum")]
    if not program.exists() or max(it.stat().st_mtime for it in sources) > program.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=folder, check=True)
    return program


def _java(seat: Seat, jars: Iterable[Path], main: str, *arguments: str) -> list[str]:
    log_settings = seat.folder / "log4j2.properties"
    log_settings.write_text(_LOG4J2)
    log = f"-Dlog4j2.configurationFile={log_settings}"
    return [str(find_java()), *java_options(jars), log, main, *arguments]


_ALL: tuple[Application, ...] = (
    MessageCopier(),
    WordCount(),
    Loop("librdkafka", "librdkafka"),
    Loop("kafka-python", "kafka_python"),
    GoLoop("franz-go", "franz"),
)
APPLICATIONS = {application.name: application for application in _ALL}
"""By name."""
