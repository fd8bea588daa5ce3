"""The client's side of RocketMQ's load balancing: consumers that share queues out among themselves.

`schedule`, `process_queue`, `rebalance` and `instance` decide, and are given their time and a `Broker` to
ask; `broker` and `consumer` bring the coordinator, the clock and Kafka. A queue is a partition of a topic.
"""
