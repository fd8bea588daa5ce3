"""The short names of members."""

import pytest

from insight.why.names import is_bare, lasting_name

UUID = "4f0c9c1e-31a4-4d59-9c1e-0a5f3f2b7c6d"


@pytest.mark.parametrize(
    ("member_id", "expected"),
    [
        ("TVnhyxcUQvedUOgdPP4P8A", True),  # Kafka's client: the Base64 of addresses
        ("xxUR60WoRX+8LU2GRPacVw", True),  # librdkafka's: the common one
        ("AGUiMxZiRq+3aIVt/QtVvg", True),
        (UUID, True),
        (f"worker-1-{UUID}", False),
        ("worker-1", False),
        ("", False),
    ],
)
def test_an_id_that_is_only_a_uuid_says_nothing_of_the_client(member_id: str, expected: bool) -> None:
    assert is_bare(member_id) is expected


def test_a_client_keeps_its_name_when_it_is_started_again() -> None:
    assert lasting_name(f"worker-1-{UUID}", {}) == "worker-1"
    assert lasting_name(UUID, {UUID: "worker-1"}) == "worker-1"
    assert lasting_name("other", {}) == "other"
