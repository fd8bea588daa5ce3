"""Moving groups between two coordinators of one Kafka cluster: this one, and the cluster's own."""
