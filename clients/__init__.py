"""The coordinator's clients: the Python client, the consumer that it coordinates, RocketMQ's client side.

Adapters let kafka-python's consumers use this project's assignors.
"""
