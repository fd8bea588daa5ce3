"""The load clients. They run in a process of their own, see `bench.apart`."""
