"""The client side of RocketMQ's load balancing: consumers that divide queues among themselves.

`instance` makes the decisions; it gets the time and a `Broker` as arguments. `broker` and `consumer` add the
coordinator, the clock and Kafka. A queue is a partition of a topic.
"""
