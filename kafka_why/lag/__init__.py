"""The lag of groups: the definitions of lag and of harmful lags, and the polls that measure it."""
