"""Makes a winner a file that can be put in a model's place."""
