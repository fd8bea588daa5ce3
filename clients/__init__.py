"""The coordinator's clients: the Python client and RocketMQ's client side.

Adapters let kafka-python's consumers use this project's assignors.
"""
