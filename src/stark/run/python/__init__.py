"""The parts of the Python API beyond a run: the words of the command line, and a view."""
