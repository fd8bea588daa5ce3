"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and their deadlines.

One file for each request, `rebalance` for the steps that requests share, `expiry` for the deadlines. Rows
cited (J1, E7, ...) are those of docs/rules.md. Source: GroupMetadataManager.java, the methods named
classicGroup*.
"""
