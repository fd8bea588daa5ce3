"""The lag of groups: its definitions, those of harmful lags, and the data that they need."""
