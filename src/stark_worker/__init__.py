"""The part of STARK that runs where the hardware is: torch and the standard library, nothing else."""
