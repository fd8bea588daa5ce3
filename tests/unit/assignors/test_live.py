"""Against Kafka itself: its assignors of kafka-clients and its group coordinator, on random groups.

A file has a few answers of Kafka's; `--rewrite` asks it again for them. The test that is marked long asks it
for many more. Where Kafka goes by the order of its hash tables, the names of members and topics are such
that this is the order of names, by which ours go: single letters, in small tables.
"""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from assignors.kafka.api import MemberSubscription, Subscription, TopicPartition
from assignors.kafka.racks import are_racks_of_use
from assignors.kafka.user_data import Claim, encode_sticky_user_data
from tests.harness.kafkas_assignors import Answer, Case, ask_kafka, read_answer, read_partitions

HERE = Path(__file__).parent
RECORDED = HERE / "test_assignors_live.txt"
RECORDED_OF_EACH, LIVE_OF_EACH = 8, 2000
MEMBERS, TOPICS, RACKS = "abcdefghijkl", "pqrst", "xyz"


def random_case(
    random: Random, assignor: str, *, same_topics: bool = False, with_racks: bool = False
) -> Case:
    topics = sorted(random.sample(TOPICS, random.randint(1, len(TOPICS))))
    counts = {topic: random.randint(1, 8) for topic in topics}
    choice = ["", *RACKS] if with_racks else [""]
    racks = {
        t: [frozenset(random.sample(RACKS, random.randint(1, 2)) if with_racks else ()) for _ in range(n)]
        for t, n in counts.items()
    }
    case = Case(assignor, racks, {}, {})
    shared = random.sample(topics, random.randint(1, len(topics)))
    left = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    random.shuffle(left)
    # Two members claim the same. Not three: to Kafka it then depends on the order in which they come.
    may_overlap = assignor in ("sticky", "cooperative-sticky")
    for member_id in sorted(random.sample(MEMBERS, random.randint(1, 6))):
        mine = shared if same_topics else random.sample(topics, random.randint(1, len(topics)))
        taken = left[: random.choice([0, 1, 3, 9])]
        owned = tuple(p for p in taken if p.topic in mine or random.random() < 0.2)
        left = left[len(taken) :]
        if may_overlap and random.random() < 0.1 and case.owned:
            owned += random.choice([*case.owned.values()])
            may_overlap = False
        generation = random.choice([4, 5])
        case.generation[member_id], case.owned[member_id] = generation, owned
        user_data = encode_sticky_user_data(Claim(owned, generation)) if assignor == "sticky" else None
        subscription = Subscription(tuple(mine), user_data, owned, generation, random.choice(choice) or None)
        instance_id = f"i{random.randint(0, 10**9)}" if random.random() < 0.3 else None
        case.members[member_id] = MemberSubscription(subscription, instance_id)
    return case


def read_case(block: str) -> Case:
    """The inverse of `Case.text`."""
    name, *lines = block.strip().splitlines()
    case = Case(name, {}, {}, {})
    for line in lines:
        what, key, *words = line.split(" ")
        if what == "topic":
            case.racks[key] = [frozenset(racks.split(",")) - {"-"} for racks in words[0].split("|")]
            continue
        instance_id, rack_id, generation, topics, owned, user_data = (w if w != "-" else None for w in words)
        case.generation[key], case.owned[key] = int(generation or -1), read_partitions(owned or "")
        subscription = Subscription(
            tuple((topics or "").split(",")),
            bytes.fromhex(user_data) if user_data else None,
            case.owned[key],
            case.generation[key],
            rack_id,
        )
        case.members[key] = MemberSubscription(subscription, instance_id)
    return case


def identical_cases(random: Random, of_each: int) -> Iterator[Case]:
    """Groups to which we give Kafka's very answer."""
    for _ in range(of_each):
        yield random_case(random, "range", with_racks=True)
        yield random_case(random, "range", with_racks=True, same_topics=True)
        yield random_case(random, "roundrobin")
        yield random_case(random, "sticky", same_topics=True)
        yield random_case(random, "cooperative-sticky", same_topics=True)
        yield random_case(random, "uniform")
        yield random_case(random, "uniform", same_topics=True)
        yield random_case(random, "server-range")


def unevenness(answer: Answer) -> int:
    """Kafka's balance score."""
    return sum(abs(len(a) - len(b)) for a, b in combinations(answer.values(), 2))


def moved(case: Case, answer: Answer) -> int:
    owner = {p: m for m, partitions in case.owned.items() for p in partitions}
    return sum(owner.get(p, m) != m for m, partitions in answer.items() for p in partitions)


def test_recorded_answers_are_ours(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("rewrite"):
        cases = list(identical_cases(Random(1), RECORDED_OF_EACH))
        answers = (f"answer {line.partition(' ')[2]}" for line in ask_kafka(cases))
        blocks = [case.text().strip() + "\n" + answer for case, answer in zip(cases, answers, strict=True)]
        RECORDED.write_text("\n\n".join(blocks) + "\n")
    for block in RECORDED.read_text().strip().split("\n\n"):
        text, _, answer = block.rpartition("\n")
        assert read_case(text).ours() == read_answer(answer), text


@pytest.mark.long
def test_many_answers_are_kafkas() -> None:
    cases = list(identical_cases(Random(2), LIVE_OF_EACH))
    for case, line in zip(cases, ask_kafka(cases), strict=True):
        assert case.ours() == read_answer(line), case.text()


def far_from_rack(case: Case, answer: Answer) -> int:
    """How many partitions have no replica on the rack of their member, as far as Kafka looks at racks."""
    rack_of = {m: member.subscription.rack_id for m, member in case.members.items()}
    wanted = {topic for member in case.members.values() for topic in member.subscription.topics}
    replicas = {TopicPartition(t, n): r for t in wanted for n, r in enumerate(case.racks[t])}
    if not are_racks_of_use({rack for rack in rack_of.values() if rack}, replicas.values()):
        return 0
    held = ((rack_of[m], p) for m, partitions in answer.items() for p in partitions)
    return sum(rack is not None and rack not in replicas[p] for rack, p in held)


@pytest.mark.long
@pytest.mark.parametrize("with_racks", [False, True])
def test_sticky_is_never_worse_than_kafkas(with_racks: bool) -> None:
    """By unevenness, then by partitions far from their member's rack, then by partitions moved.

    Members claim nothing twice, so that it is clear what moves, and only topics they subscribe to: Kafka may
    give a member back a partition of another topic.
    """
    random = Random(3)
    cases: list[Case] = []
    while len(cases) < LIVE_OF_EACH:
        case = random_case(random, "sticky", same_topics=random.random() < 0.2, with_racks=with_racks)
        claims = [(m, p) for m, owned in case.owned.items() for p in owned]
        is_known = all(p.topic in case.members[m].subscription.topics for m, p in claims)
        if is_known and len({p for _, p in claims}) == len(claims):
            cases.append(case)
    better = 0
    for case, line in zip(cases, ask_kafka(cases), strict=True):
        ours, kafkas = case.ours(), read_answer(line)
        score, kafkas_score = (
            (unevenness(answer), far_from_rack(case, answer), moved(case, answer))
            for answer in (ours, kafkas)
        )
        assert score <= kafkas_score, case.text()
        better += score < kafkas_score
    assert better > 0
