"""RocketMQ's broker side of a group, as a function of the group's log: clients, notifications and queue
locks.

`state.rocketmq.protocol.step` applies one event to one group. Behaviour and names are those of Apache
RocketMQ 5.3 (ConsumerManager, ProducerManager, RebalanceLockManager, QueryAssignmentProcessor).
"""
