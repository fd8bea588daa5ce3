"""The state of share groups' partitions: the cluster's share coordinators execute groups' tasks."""
