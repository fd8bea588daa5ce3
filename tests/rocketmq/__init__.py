"""RocketMQ's own clients go on and lose nothing while what they need breaks."""
