"""The scripted run: a group that rebalances while processes are killed, and the checks of its outcome."""
