"""RocketMQ's broker side of a group, as a function of its log: who is there, who is told, who holds a lock.

`state.rocketmq.step.step` is the one entry for one event of one group; `state.rocketmq.split` cuts what a
client sends for several groups into one message a group. Behaviour and names are those of Apache RocketMQ
5.3 (ConsumerManager, ProducerManager, RebalanceLockManager, QueryAssignmentProcessor).
"""
