"""Scripted groups of the cluster's own coordinator, and a judge of the reports about them."""
