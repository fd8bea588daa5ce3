"""Metrics of a gateway, as plain numbers that several processes can add up."""
