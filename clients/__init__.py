"""Who speaks with the coordinator: its Python client, the consumer it coordinates, RocketMQ's client.

Adapters let kafka-python's consumers use the assignors here.
"""
