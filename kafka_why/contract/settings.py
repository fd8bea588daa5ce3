"""Settings as they are stored and shown."""

SettingValue = int | str
"""The value of a setting where settings are stored and shown. A list of names is a text with commas."""
