"""The lag of groups: definitions of lag and of harmful lags, and the polls and samples from which
it follows.
"""
