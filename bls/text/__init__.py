"""Stop strings, incremental detokenization, and details of tokens."""
