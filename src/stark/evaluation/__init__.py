"""Evaluators, the final check of winners, and bundles of evidence."""
