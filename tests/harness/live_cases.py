"""Random groups for Kafka's own assignors and ours.

Kafka's results may depend on the order of hash tables, ours on the order of names. Members and topics have
names of one letter, for which both orders are the same in small tables.
"""

from collections.abc import Iterator
from random import Random

from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberSubscription,
    Subscription,
    TopicPartition,
    encode_sticky_user_data,
)
from tests.harness.kafkas_assignors import Case

MEMBERS, TOPICS, RACKS = "abcdefghijkl", "pqrst", "xyz"


def random_case(
    random: Random, assignor: str, *, same_topics: bool = False, with_racks: bool = False
) -> Case:
    topics = sorted(random.sample(TOPICS, random.randint(1, len(TOPICS))))
    counts = {topic: random.randint(1, 8) for topic in topics}
    rack_choices = ["", *RACKS] if with_racks else [""]
    racks = {
        t: [frozenset(random.sample(RACKS, random.randint(1, 2)) if with_racks else ()) for _ in range(n)]
        for t, n in counts.items()
    }
    case = Case(assignor, racks, {}, {})
    shared = random.sample(topics, random.randint(1, len(topics)))
    unclaimed = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    random.shuffle(unclaimed)
    # Two members claim the same. Not three: to Kafka it then depends on the order in which they come.
    may_overlap = assignor in ("sticky", "cooperative-sticky")
    for member_id in sorted(random.sample(MEMBERS, random.randint(1, 6))):
        subscribed = shared if same_topics else random.sample(topics, random.randint(1, len(topics)))
        taken = unclaimed[: random.choice([0, 1, 3, 9])]
        owned = tuple(p for p in taken if p.topic in subscribed or random.random() < 0.2)
        unclaimed = unclaimed[len(taken) :]
        if may_overlap and random.random() < 0.1 and case.owned:
            owned += random.choice([*case.owned.values()])
            may_overlap = False
        generation = random.choice([4, 5])
        case.generation[member_id], case.owned[member_id] = generation, owned
        user_data = encode_sticky_user_data(Claim(owned, generation)) if assignor == "sticky" else None
        rack = random.choice(rack_choices) or None
        subscription = Subscription(tuple(subscribed), user_data, owned, generation, rack)
        instance_id = f"i{random.randint(0, 10**9)}" if random.random() < 0.3 else None
        case.members[member_id] = MemberSubscription(subscription, instance_id)
    return case


def identical_cases(random: Random, of_each: int) -> Iterator[Case]:
    """Yield groups whose assignment equals Kafka's."""
    for _ in range(of_each):
        yield random_case(random, "range", with_racks=True)
        yield random_case(random, "range", with_racks=True, same_topics=True)
        yield random_case(random, "roundrobin")
        yield random_case(random, "sticky", same_topics=True)
        yield random_case(random, "cooperative-sticky", same_topics=True)
        yield random_case(random, "uniform")
        yield random_case(random, "uniform", same_topics=True)
        yield random_case(random, "server-range")
