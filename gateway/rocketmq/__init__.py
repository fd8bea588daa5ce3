"""The gateway for RocketMQ's remoting clients."""
