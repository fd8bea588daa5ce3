"""The kinds of requests that wait for each other on one connection."""

from enum import Enum


class Kind(Enum):
    """What a request waits for. It waits until all earlier requests of another kind are answered. One of kind
    ALONE waits for all earlier requests, and all later requests wait for it.
    """

    COORDINATOR = "answered by the gateway, most by way of the coordinator"
    BROKERS = "forwarded"
    ALONE = "alone"
