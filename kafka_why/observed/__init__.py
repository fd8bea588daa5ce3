"""Groups of the cluster's own coordinator, as far as its records in `__consumer_offsets` show them."""
