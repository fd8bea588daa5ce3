"""Recordings of groups' logs, and their replay through the core without Spark, which is compared with the
topics.
"""
