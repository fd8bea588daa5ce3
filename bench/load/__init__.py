"""The load clients, which run in a process of their own (`bench.separate_process`)."""
