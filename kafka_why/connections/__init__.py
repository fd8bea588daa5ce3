"""Connections to a Kafka cluster: addresses, settings, logins, certificates, clients."""
