"""The client side of RocketMQ's load balancing: consumers that divide queues among themselves.

`schedule`, `process_queue`, `rebalance` and `instance` make the decisions; they get the time and a `Broker`
as arguments. `broker` and `consumer` add the coordinator, the clock and Kafka. A queue is a partition of a
topic.
"""
