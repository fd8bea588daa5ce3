"""RocketMQ's allocation strategies by the names that their `getName` returns.

Source: client/src/main/java/org/apache/rocketmq/client/consumer/rebalance of Apache RocketMQ.
"""
