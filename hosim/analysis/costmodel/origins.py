"""The possible origins of an op's time."""

MEASURED, TABLE, MODEL, GUESS = "measured", "table", "fitted model", "guess"
ORIGINS = (MEASURED, TABLE, MODEL, GUESS)
"""The surest first."""
