"""The scripted run: a group that rebalances while consumers and the coordinator are killed, and its proof."""
