"""The rules of the classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and their timers."""
