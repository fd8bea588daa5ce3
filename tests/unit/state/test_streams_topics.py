"""Properties of the numbers of any topology. The scenario `streams_topics` has the rows."""

from hypothesis import given
from hypothesis import strategies as st

from assignors.kafka.sticky_tasks import SubtopologyTasks
from kafka_why.contract.kafka.streams_responses import (
    StatusCode,
    StreamsTopicInfo,
    StreamsTopology,
    Subtopology,
)
from state.kafka.group import Topic
from state.kafka.streams_topics import (
    ConfiguredTopology,
    InvalidTopologyError,
    TopologyProblem,
    configure,
    required_topics,
    source_topics,
)
from tests.harness.examples import examples


def internal(*names: str) -> list[StreamsTopicInfo]:
    return [StreamsTopicInfo(name=name, replication_factor=2) for name in names]


def look(counts: dict[str, int], subtopologies: list[Subtopology]) -> ConfiguredTopology | TopologyProblem:
    """Configure the topology. Topics without a number do not exist."""
    topology = StreamsTopology(1, subtopologies)
    known: dict[str, Topic | None] = dict.fromkeys(required_topics(topology))
    known |= {name: Topic(name.encode(), count) for name, count in counts.items()}
    return configure(topology, known)


def in_rounds(subtopologies: list[Subtopology], counts: dict[str, int]) -> dict[str, int]:
    """Return the numbers of the topics that are written, or those decided before a round without progress.
    This is Kafka's algorithm: each round visits all subtopologies.
    """
    decided: dict[str, int] = {}
    before = -1
    while len(decided) > before:
        before = len(decided)
        for one in sorted(subtopologies, key=lambda one: one.subtopology_id):
            known = counts | decided
            known_counts = [known[name] for name in source_topics(one) if name in known]
            for sink in one.repartition_sink_topics:
                if known_counts and sink not in decided:
                    decided[sink] = max(known_counts)
    return decided


@st.composite
def topologies(draw: st.DrawFn) -> list[Subtopology]:
    """Draw subtopologies that may write the same topics and read each other's in loops."""
    written = st.lists(st.sampled_from([f"r{n}" for n in range(5)]), max_size=3)
    return [
        Subtopology(
            subtopology_id=id_,
            source_topics=draw(st.lists(st.sampled_from(("a1", "a2", "a3")), max_size=1)),
            repartition_sink_topics=draw(written),
            repartition_source_topics=internal(*draw(written)),
            state_changelog_topics=internal(*(f"s{id_}-{n}" for n in range(draw(st.integers(0, 2))))),
        )
        for id_ in draw(st.permutations("01234"))[: draw(st.integers(0, 5))]
    ]


@examples(300)
@given(topologies())
def test_kst7_kst13_topology_is_ready_once_its_internal_topics_are_created(given_: list[Subtopology]) -> None:
    """A subtopology has as many tasks as its largest topic, whatever the order of the subtopologies."""
    counts = {"a1": 1, "a2": 2, "a3": 3}
    decided = in_rounds(given_, counts)
    named = {name for one in given_ for name in (*one.repartition_sink_topics, *source_topics(one))}
    needed = named - counts.keys()
    try:
        found = look(counts, given_)
    except InvalidTopologyError:
        assert needed - decided.keys() or not all(map(source_topics, given_))
        return
    assert not needed - decided.keys()
    if isinstance(found, TopologyProblem):
        assert found.status == StatusCode.MISSING_INTERNAL_TOPICS
        assert look(counts, given_[::-1]) == found
        assert {topic.replication_factor for topic in found.create} == {2}
        counts |= {topic.name: topic.partitions for topic in found.create}
        found = look(counts, given_)
    assert isinstance(found, ConfiguredTopology)
    assert counts == counts | {name: decided[name] for name in needed & counts.keys()}
    for one in given_:
        size = max(counts[name] for name in source_topics(one))
        assert found.tasks[one.subtopology_id] == SubtopologyTasks(size, bool(one.state_changelog_topics))
        assert all(counts[topic.name] == size for topic in one.state_changelog_topics)
