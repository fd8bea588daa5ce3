"""RocketMQ's broker side of a group, as a function of the group's log: clients, notifications and queue
locks.

In RocketMQ the clients assign the queues of a topic, as a rule. The broker has the list of a group's clients,
notifies them of its changes, and locks queues that are read in order.

`state.rocketmq.protocol.step` applies one event to one group. Behaviour and names are those of Apache
RocketMQ 5.3 (ConsumerManager, ProducerManager, RebalanceLockManager, QueryAssignmentProcessor).
"""
