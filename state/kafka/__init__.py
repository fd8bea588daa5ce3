"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the deadlines between them.

One file a request, `rebalance` for what they share, `expiry` for the deadlines. Rows cited (J1, E7, ...) are
those of docs/rules.md.
Source: GroupMetadataManager.java, the methods named classicGroup*.
"""
