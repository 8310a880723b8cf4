"""The text of an answer: stop strings, incremental detokenization, token details."""
