"""A Ray cluster that evaluates: many lanes on many machines. The only home of Ray."""
