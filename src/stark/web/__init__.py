"""The page of a run or a benchmark, served on this machine. It only reads."""
