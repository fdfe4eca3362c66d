"""The live view of runs: on the terminal, as plain lines, and in a notebook."""
