"""What is said of groups that use the embedded broker's own coordinator."""

from insight.broker_groups import BrokerGroup, sentence

GROUP = BrokerGroup("orders", "classic", "Stable", ["c1 at /10.0.0.1"])


def test_the_sentence_says_which_group_and_what_to_do() -> None:
    assert sentence(GROUP, "127.0.0.1:1", "127.0.0.1:2") == (
        "group 'orders' (classic protocol, Stable, c1 at /10.0.0.1) uses the broker's own coordinator at "
        "127.0.0.1:1, so it is not among the groups here: give its clients the gateway's address "
        "127.0.0.1:2, or see it by `group-coordinator observe --bootstrap-servers 127.0.0.1:1`"
    )


def test_many_clients_and_no_gateway_are_said_shortly() -> None:
    many = BrokerGroup("orders", "classic", "Stable", [f"c{n} at /10.0.0.1" for n in range(5)])
    assert "c2 at /10.0.0.1 and 2 more)" in sentence(many, "b", None)
    assert "it needs a gateway" in sentence(many, "b", None)
    assert "(consumer protocol, Stable) uses" in sentence(
        BrokerGroup("o", "consumer", "Stable", []), "b", "g"
    )
