"""The coordinator's clients: the Python client and RocketMQ's client side.

Adapters make this project's assignors available to kafka-python's consumers.
"""
