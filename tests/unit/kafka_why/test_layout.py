"""Names and sizes of a coordinator's topics."""

from kafka_why.contract.codec import DEAD_LETTER_MAX_BYTES, MESSAGE_MAX_CHARS
from kafka_why.contract.layout import TopicLayout


def test_dead_letter_of_any_record_fits_into_a_record() -> None:
    """The sink fails every time on a record that is too large, so no input may cause one."""
    worst = 2 * DEAD_LETTER_MAX_BYTES * 4 // 3 + DEAD_LETTER_MAX_BYTES + 6 * MESSAGE_MAX_CHARS
    assert worst < TopicLayout.named().view_max_bytes
