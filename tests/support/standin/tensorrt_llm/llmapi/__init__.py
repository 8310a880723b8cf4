"""The module that holds `llm_args`."""
