"""How good a candidate is, and how sure that is: evaluators, confirmation of winners, bundles of evidence."""
