"""The state of share groups' partitions: the cluster's share coordinators do what groups ask for."""
