"""Explains a RocketMQ group from polls of its cluster, without this project's coordinator."""
