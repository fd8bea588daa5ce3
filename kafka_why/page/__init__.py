"""The page that shows in a browser which group is unwell, and why.

It reads the topics and changes nothing.
"""
