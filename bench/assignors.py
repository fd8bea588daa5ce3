"""The speed of the sticky assignors: `python -m bench.assignors [--quick]` prints a table.

They are compared with kafka-python's, which are written in the same language, and with Kafka's own in a JVM:
its first call (cold), and the median of its last calls, when the code has been compiled (warm). Members with
different topics are of five kinds, and each kind lacks another fifth of the topics. When a member leaves, the
others hold what our assignor gave them before. A time is the processor time of one call, so that a busy
machine does not change it (for a JVM, without the compiler's time). `> 60 s` is a call that was aborted.

Two columns show the quality of the assignments: `uneven` is the largest number of partitions of a member less
the smallest, `moved` how many partitions are taken from members. The exit code is 0 if each call is at least
RATIO_LINE times as fast as kafka-python's, and no assignment is less even than another's, or as even with
more moves.
"""

import argparse
import multiprocessing
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from multiprocessing.connection import Connection

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import MemberId, MemberSubscription, Subscription, TopicPartition
from assignors.kafka.user_data import Claim, encode_sticky_user_data
from tests.harness.kafka_python import STICKY, cluster_of, members_of, tell
from tests.harness.kafkas_assignors import Case, ask_kafka, read_answer

RATIO_LINE = 10.0
LIMIT_S, QUICK_LIMIT_S = 60.0, 10.0
KINDS = 5
JAVA_START_S = 60.0
OUR_CALLS, JAVA_CALLS = 9, 15
GENERATION = 4

Answer = dict[MemberId, list[TopicPartition]]


@dataclass(frozen=True)
class Size:
    """The numbers of members, of topics, and of partitions per topic."""

    members: int
    topics: int
    partitions: int

    def __str__(self) -> str:
        return f"{self.members:,} x {self.topics:,} x {self.partitions}"

    def counts(self) -> dict[str, int]:
        """Return the number of partitions by topic."""
        return {f"t{number:04}": self.partitions for number in range(self.topics)}

    def wishes(self, *, equal: bool) -> dict[MemberId, tuple[str, ...]]:
        """Return the topics by member."""
        kinds = [
            tuple(topic for number, topic in enumerate(self.counts()) if equal or number % KINDS != kind)
            for kind in range(KINDS)
        ]
        return {f"m{number:04}": kinds[number % KINDS] for number in range(self.members)}


SIZES = (Size(100, 10, 100), Size(1_000, 1_000, 10))
QUICK_SIZES = (Size(100, 10, 100), Size(100, 100, 10))


@dataclass(frozen=True)
class Problem:
    """The arguments of an assignor. `held` is None in the first generation."""

    assignor: str
    counts: Mapping[str, int]
    wishes: Mapping[MemberId, tuple[str, ...]]
    held: Answer | None

    def owned(self, member_id: MemberId) -> tuple[TopicPartition, ...]:
        return tuple((self.held or {}).get(member_id, ()))

    def subscriptions(self) -> dict[MemberId, MemberSubscription]:
        """Return the subscriptions in the form that our assignors and Kafka's take."""
        members = {}
        for member_id, topics in self.wishes.items():
            owned = self.owned(member_id)
            user_data = encode_sticky_user_data(Claim(owned, GENERATION)) if self.held else None
            generation_id = GENERATION if self.held else None
            members[member_id] = MemberSubscription(Subscription(topics, user_data, owned, generation_id))
        return members

    def java(self) -> Case:
        """Return the problem in the form that the harness of Kafka's assignors takes."""
        racks = {topic: [frozenset[str]()] * count for topic, count in self.counts.items()}
        generation = dict.fromkeys(self.wishes, GENERATION if self.held else -1)
        owned = {member_id: self.owned(member_id) for member_id in self.wishes}
        return Case(self.assignor, racks, self.subscriptions(), generation, owned)


@dataclass(frozen=True)
class Measured:
    """A call's seconds, and its assignment; `is_cut_off` if it was aborted after these seconds."""

    seconds: float
    answer: Answer | None = None
    first_s: float = 0.0

    @property
    def is_cut_off(self) -> bool:
        return self.answer is None

    def time(self, seconds: float | None = None) -> str:
        shown = self.seconds if seconds is None else seconds
        return f"> {shown:.0f} s" if self.is_cut_off else f"{shown * 1e3:,.1f} ms"


def main() -> None:
    """Print the table; the exit code is 0 if all limits were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.assignors", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use smaller groups")
    quick = parser.parse_args().quick
    print(_row(["members x topics x partitions", "topics", "when", "assignor", *_HEADINGS]))
    held = [
        _report(name, problem, QUICK_LIMIT_S if quick else LIMIT_S)
        for name, problem in problems(QUICK_SIZES if quick else SIZES)
    ]
    slow, worse = ([line[i] for line in held].count(False) for i in range(2))
    print(f"\nat least {RATIO_LINE:.0f} times as fast as kafka-python: {_verdict(slow, len(held))}")
    print(f"\nnever less even, nor as even with more moves: {_verdict(worse, len(held))}")
    sys.exit(1 if slow or worse else 0)


def problems(sizes: tuple[Size, ...]) -> Iterator[tuple[list[str], Problem]]:
    """Yield the problems, each with its cells in the table."""
    for size in sizes:
        for equal in (True, False):
            for assignor in STICKY:
                where = [str(size), "equal" if equal else "unequal"]
                counts, wishes = size.counts(), size.wishes(equal=equal)
                from_scratch = Problem(assignor, counts, wishes, None)
                yield [*where, "from scratch", assignor], from_scratch
                held = _our_call(from_scratch)()
                _, *stay = wishes
                stayed = {member_id: wishes[member_id] for member_id in stay}
                yield [*where, "one leaves", assignor], Problem(assignor, counts, stayed, held)


def _our_call(problem: Problem) -> Callable[[], Answer]:
    subscriptions = problem.subscriptions()
    return lambda: ASSIGNORS[problem.assignor].assign(problem.counts, subscriptions)


def of_ours(problem: Problem) -> Measured:
    """Return our assignor's median time."""
    call = _our_call(problem)
    return Measured(statistics.median(_seconds(call) for _ in range(OUR_CALLS)), call())


def _seconds(call: Callable[[], object]) -> float:
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def of_kafka_python(problem: Problem, limit_s: float) -> Measured:
    """Measure in a separate process, which ends when the call exceeds the limit of processor time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call_kafka_python, args=(problem, limit_s, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()  # type: ignore[no-any-return]
    except EOFError:
        return Measured(limit_s)
    finally:
        process.kill()
        process.join()


def _call_kafka_python(problem: Problem, limit_s: float, sender: Connection) -> None:
    generation = GENERATION if problem.held else -1
    metadata = {
        member_id: tell(problem.assignor, topics, problem.owned(member_id), generation)
        for member_id, topics in problem.wishes.items()
    }
    cluster, members = cluster_of(problem.counts), members_of(metadata)
    assignor = STICKY[problem.assignor]()
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    began_s = time.process_time()
    given = assignor.assign(cluster, members)
    seconds = time.process_time() - began_s
    answer = {m: [TopicPartition(*p) for p in assigned.partitions()] for m, assigned in given.items()}
    sender.send(Measured(seconds, answer))


def of_java(problem: Problem, limit_s: float) -> Measured:
    """Measure Kafka's own assignor repeatedly in one JVM, for `limit_s` after the JVM has started."""
    try:
        lines = ask_kafka([problem.java()] * JAVA_CALLS, JAVA_START_S + limit_s)
    except subprocess.TimeoutExpired as error:
        lines = bytes(error.stdout or b"").decode().split("\n")[:-1]
    if not lines:
        return Measured(limit_s)
    seconds = [int(line.split(" ", 1)[0]) / 1e9 for line in lines]
    return Measured(statistics.median(seconds[len(seconds) // 2 :]), read_answer(lines[-1]), seconds[0])


_HEADINGS = (
    *("ours", "kafka-python", "ratio", "Java cold", "Java warm"),
    *("uneven: ours", "k-p", "Java", "moved: ours", "k-p", "Java"),
)
_WIDTHS = (29, 8, 12, 18, 12, 14, 8, 12, 12, 12, 5, 5, 11, 5, 5)


def _row(cells: list[str]) -> str:
    return "  ".join(
        cell.ljust(width) if column < 4 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    )


def _report(name: list[str], problem: Problem, limit_s: float) -> tuple[bool, bool]:
    """Measure and print a row. Return whether it kept the limit of speed, and that of quality."""
    ours, theirs = of_ours(problem), of_kafka_python(problem, limit_s)
    java = of_java(problem, limit_s)
    ratio = theirs.seconds / ours.seconds
    answers = [measured.answer for measured in (ours, theirs, java)]
    cells = [ours.time(), theirs.time(), f"{'> ' if theirs.is_cut_off else ''}{ratio:,.0f}"]
    cells += [java.time(java.first_s or None), java.time()]
    cells += ["-" if answer is None else str(_uneven(answer)) for answer in answers]
    cells += ["-" if answer is None else str(_moved(problem, answer)) for answer in answers]
    print(_row([*name, *cells]), flush=True)
    scores = [(_score(a), _moved(problem, a)) for a in answers if a is not None]
    return ratio >= RATIO_LINE, scores[0] == min(scores)


def _uneven(answer: Answer) -> int:
    loads = [len(partitions) for partitions in answer.values()]
    return max(loads) - min(loads)


def _score(answer: Answer) -> int:
    """Return Kafka's balance score: 0 is perfect."""
    return sum(abs(len(a) - len(b)) for a, b in combinations(answer.values(), 2))


def _moved(problem: Problem, answer: Answer) -> int:
    """Return how many partitions are taken from members that stay."""
    return sum(len(set(problem.owned(m)) - set(partitions)) for m, partitions in answer.items())


def _verdict(missed: int, of: int) -> str:
    return f"NOT HELD in {missed} of {of}" if missed else f"held in all {of}"


if __name__ == "__main__":
    main()
