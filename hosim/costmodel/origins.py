"""Describe where the time of an op may be from."""

MEASURED, TABLE, MODEL, GUESS = "measured", "table", "fitted model", "guess"
ORIGINS = (MEASURED, TABLE, MODEL, GUESS)
"""The surest first."""
