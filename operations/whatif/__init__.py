"""Experiments: a group's clients, as a log shows them, run again with other settings in a simulation. They
react to the answers of the core, the coordinator's group logic (a closed loop).
"""
