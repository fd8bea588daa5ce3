"""A supervised broker, before its start."""

from pathlib import Path

from embedded.broker import EmbeddedBroker, Ports
from embedded.broker_supervision import SupervisedBroker


def test_clients_of_a_supervised_broker_get_its_client_settings(tmp_path: Path) -> None:
    secured = {"security.protocol": "SSL"}
    broker = EmbeddedBroker(tmp_path, ports=Ports(20_001, 20_002), client_properties=secured)
    supervised = SupervisedBroker(broker, lambda _: None)
    assert supervised.client_config.kafka_python_settings()["security_protocol"] == "SSL"
    assert supervised.client_config.bootstrap_servers == "127.0.0.1:20001"
