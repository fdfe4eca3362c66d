"""The clocks, and the arithmetic on what they show."""
