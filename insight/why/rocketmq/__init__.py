"""Why a RocketMQ group rebalanced: its history read as changes of who is there, and whom the broker told."""
