"""RocketMQ's allocation strategies, by the names their `getName` gives.

Source: client/src/main/java/org/apache/rocketmq/client/consumer/rebalance of Apache RocketMQ.
"""
