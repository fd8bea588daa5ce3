"""How a client reaches a Kafka cluster: addresses, settings, logins, certificates, and the clients."""
