"""The package that contains `llm_args`."""
