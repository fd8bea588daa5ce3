"""Names and sizes of a coordinator's topics."""

from records.codec import DEAD_LETTER_MAX_BYTES, MESSAGE_MAX_CHARS
from records.layout import TopicLayout
from records.sizes import RECORD_OVERHEAD_BYTES


def test_names_begin_with_the_prefix() -> None:
    layout = TopicLayout.named("eu")
    assert (layout.requests_topic, layout.responses_topic) == ("eu-requests", "eu-responses")
    assert (layout.groups_topic, layout.events_topic) == ("eu-groups", "eu-events")
    assert layout.dead_letters_topic == "eu-dead-letters"


def test_sizes_can_be_given() -> None:
    layout = TopicLayout.named(
        request_partitions=1, reply_partitions=2, request_max_bytes=3, response_max_bytes=4
    )
    assert (layout.request_partitions, layout.reply_partitions) == (1, 2)
    assert layout.request_record_max_bytes == 3 + RECORD_OVERHEAD_BYTES
    assert layout.response_record_max_bytes == 4 + RECORD_OVERHEAD_BYTES


def test_a_dead_letter_always_fits() -> None:
    """The sink fails every time on a record that is too large, so no input may cause one."""
    worst = 2 * DEAD_LETTER_MAX_BYTES * 4 // 3 + DEAD_LETTER_MAX_BYTES + 6 * MESSAGE_MAX_CHARS
    assert worst < TopicLayout.named().view_max_bytes
