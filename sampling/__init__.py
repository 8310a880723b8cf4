"""How tokens are chosen: the numbers that requests set, and what they do to a distribution."""
